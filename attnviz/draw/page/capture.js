/* The data: maps of all heads over one text, unpacked when they are first shown. */

const data = JSON.parse($("data").textContent);

/** Return the bytes of a block: base64 of a zlib stream in a script element of its own. */
async function unpack(number) {
  const text = $(`block-${number}`).textContent.trim();
  const packed = Uint8Array.fromBase64?.(text) ?? Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** What a row must keep for the rest to be rescaled: as LEAST_LEFT of measures.sinks. */
const LEAST = { sinkless: 0.005, value: 0 };

/** How far √w is from what one byte says of it. */
const COARSE = 1 / 508;

/** The names of tokens: where one repeats it has its place, as in Mary (10). */
function nameTokens(side) {
  const times = new Map();
  side.tokens = side.tokens.map(visible);
  for (const token of side.tokens) times.set(token, (times.get(token) ?? 0) + 1);
  side.names = side.tokens.map((token, at) => ordered(token) + (times.get(token) > 1 ? ` (${at})` : ""));
}

/** The heads of one pass over one text: a row for each query, a column for each key. */
class Capture {
  constructor(record) {
    Object.assign(this, record);
    this.keys ??= this.queries;
    this.crossed = this.keys !== this.queries;
    this.first = parseInt(this.heads.name[0].split("H")[1], 10) - this.heads.head[0] || 0; // 0, or 1 by --index-base
    for (const side of new Set([this.queries, this.keys])) nameTokens(side);
    this.n = this.queries.tokens.length;
    this.m = this.keys.tokens.length;
    this.size = this.causal ? (this.n * (this.n + 1)) / 2 : this.n * this.m;
    this.count = this.heads.layer.length;
    this.names = this.heads.name;
    this.sinks = new Set(this.sink);
    this.kept = new Map();
  }

  async open() {
    if (this.high) return this;
    const bytes = await unpack(this.weights.block), total = this.count * this.size;
    this.high = bytes.subarray(0, total);
    this.lows = new Map();
    (this.weights.fine ?? [...this.names.keys()]).forEach((head, at) => {
      const from = total + at * this.size;
      this.lows.set(head, bytes.subarray(from, from + this.size));
    });
    if (this.norms != null) this.moved = new Float32Array((await unpack(this.norms)).buffer);
    if (this.query_key) this.vectors = new Int16Array((await unpack(this.query_key.block)).buffer);
    return this;
  }

  /** Return whether a head's weights have both bytes, so that their digits can be shown. */
  exact(head) { return this.lows.has(head); }

  /** Return how many keys query i sees: those after a causal query are not zero, they are not there. */
  seen(i) { return this.causal ? i + 1 : this.m; }

  /** Write the weights of query i of a head into a row of NaN, as they were given; NaN is not there. */
  fillRow(head, i, row) {
    const { high, limit } = this, low = this.lows.get(head), first = head * this.size;
    for (let j = 0, seen = this.seen(i), at = this.causal ? (i * (i + 1)) / 2 : i * seen; j < seen; j++, at++) {
      const byte = high[first + at], number = low ? byte * 256 + low[at] : byte;
      if (number === (low ? 65535 : 255)) continue;
      const part = number / (low ? 65534 : 254);
      row[j] = limit ? (part * 2 - 1) * limit : part * part;
    }
    return row;
  }

  /** Return what a mode of the weights multiplies a key's weight with. */
  factor(head, mode, j) {
    if (mode === "value") return this.moved[head * this.m + j];
    return mode === "sinkless" && this.sinks.has(j) ? 0 : 1;
  }

  /** Write the weights of a head in a mode: rows are rescaled, or NaN where nothing is left. */
  fill(head, mode, values) {
    const { n, m } = this;
    values.fill(NaN);
    for (let i = 0; i < n; i++) this.fillRow(head, i, values.subarray(i * m, (i + 1) * m));
    if (mode === "raw") return values;
    const factors = Float32Array.from({ length: this.m }, (_, j) => this.factor(head, mode, j));
    for (let i = 0; i < this.n; i++) {
      const row = values.subarray(i * this.m, i * this.m + this.seen(i));
      let sum = 0;
      for (let j = 0; j < row.length; j++) if (row[j] === row[j]) sum += row[j] *= factors[j];
      const enough = sum > LEAST[mode];
      for (let j = 0; j < row.length; j++) row[j] = enough && (factors[j] || mode === "value") ? row[j] / sum : NaN;
    }
    return values;
  }

  /** Return how far a weight of one byte can be from the true one, rescaling counted. */
  error(head, mode, i, j) {
    if (this.exact(head)) return 0;
    if (this.limit) return 2 * COARSE * this.limit;
    const raw = this.fillRow(head, i, new Float32Array(this.m).fill(NaN));
    let sum = 0, errors = 0, own = 0, share = 0;
    for (let k = 0; k < this.seen(i); k++) {
      const root = Math.sqrt(raw[k] || 0), factor = this.factor(head, mode, k);
      const error = (2 * root * COARSE + COARSE ** 2) * factor;
      sum += root * root * factor;
      errors += error;
      if (k === j) [own, share] = [error, root * root * factor];
    }
    return mode === "raw" ? own : (own + (share / sum) * errors) / Math.max(sum - errors, LEAST.sinkless);
  }

  /** Return the mean of some heads as far as it is known: its map, how many heads are in it and in each cell. */
  mean(heads, mode) {
    const name = mode + heads;
    if (!this.kept.has(name)) {
      const map = this.fill(heads[0], mode, new Float32Array(this.n * this.m));
      if (this.kept.size > 11) this.kept.delete(this.kept.keys().next().value);
      const counts = new Uint16Array(heads.length > 1 ? map.length : 0);
      for (let k = 0; k < counts.length; k++) if (map[k] === map[k]) counts[k] = 1;
      this.kept.set(name, { map, counts, known: 1 });
    }
    return this.kept.get(name);
  }

  /** Add one more head to a mean of heads; return how many are in it. */
  add(heads, mode) {
    const mean = this.mean(heads, mode), { map, counts } = mean;
    const one = this.fill(heads[mean.known], mode, new Float32Array(map.length));
    for (let k = 0; k < one.length; k++) {
      if (one[k] === one[k]) map[k] = counts[k]++ ? map[k] + (one[k] - map[k]) / counts[k] : one[k];
    }
    return ++mean.known;
  }

  /** Return the map of a head, or the mean of several as far as it is known; the last few are kept. */
  map(heads, mode) { return this.mean(heads, mode).map; }

  label(head) { return data.labels[this.heads.label[head]]; }

  /** Return "induction .51"; the label alone where the text shows no score. */
  said(head) {
    const score = this.heads.score[head];
    return this.label(head).said + (score == null ? "" : " " + share(score));
  }
}

const captures = data.captures.map((record) => new Capture(record));
