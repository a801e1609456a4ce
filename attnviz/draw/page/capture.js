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

  /** Write the (query, key) weights of a head as they were given; NaN is not there. */
  fillRaw(head, values) {
    const { n, m, high, limit } = this, low = this.lows.get(head), first = head * this.size;
    values.fill(NaN);
    for (let i = 0, at = 0; i < n; i++) {
      for (let j = 0, seen = this.seen(i); j < seen; j++, at++) {
        const byte = high[first + at], number = low ? byte * 256 + low[at] : byte;
        if (number === (low ? 65535 : 255)) continue;
        const part = number / (low ? 65534 : 254);
        values[i * m + j] = limit ? (part * 2 - 1) * limit : part * part;
      }
    }
    return values;
  }

  /** Return what a mode of the weights multiplies a key's weight with. */
  factor(head, mode, j) {
    if (mode === "value") return this.moved[head * this.m + j];
    return mode === "sinkless" && this.sinks.has(j) ? 0 : 1;
  }

  /** Write the weights of a head in a mode: rows are rescaled, or NaN where nothing is left. */
  fill(head, mode, values) {
    this.fillRaw(head, values);
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
    const raw = this.map([head], "raw");
    let sum = 0, errors = 0, own = 0, share = 0;
    for (let k = 0; k < this.seen(i); k++) {
      const root = Math.sqrt(raw[i * this.m + k] || 0), factor = this.factor(head, mode, k);
      const error = (2 * root * COARSE + COARSE ** 2) * factor;
      sum += root * root * factor;
      errors += error;
      if (k === j) [own, share] = [error, root * root * factor];
    }
    return mode === "raw" ? own : (own + (share / sum) * errors) / Math.max(sum - errors, LEAST.sinkless);
  }

  /** Return the mean map of some heads; the last few are kept. */
  map(heads, mode) {
    const name = mode + heads;
    if (this.kept.has(name)) return this.kept.get(name);
    let mean = this.fill(heads[0], mode, new Float32Array(this.n * this.m));
    if (heads.length > 1) {
      const counts = Uint16Array.from(mean, (value) => (value === value ? 1 : 0));
      mean = mean.map((value) => (value === value ? value : 0));
      const one = new Float32Array(mean.length);
      for (const head of heads.slice(1)) {
        this.fill(head, mode, one);
        for (let k = 0; k < one.length; k++) if (one[k] === one[k]) { mean[k] += one[k]; counts[k]++; }
      }
      for (let k = 0; k < mean.length; k++) mean[k] = counts[k] ? mean[k] / counts[k] : NaN;
    }
    if (this.kept.size > 11) this.kept.delete(this.kept.keys().next().value);
    this.kept.set(name, mean);
    return mean;
  }

  label(head) { return data.labels[this.heads.label[head]]; }

  /** Return "induction .51"; the label alone where the text shows no score. */
  said(head) {
    const score = this.heads.score[head];
    return this.label(head).said + (score == null ? "" : " " + share(score));
  }
}

const captures = data.captures.map((record) => new Capture(record));
