/* Canvases that scroll: only what is in view is drawn. */

const FONT = 'system-ui, -apple-system, "Segoe UI", "Noto Sans", "Noto Sans CJK KR", "DejaVu Sans", sans-serif';

/** Whether the page is printed: what scrolls is whole, unless it passes a sheet, and fine: × 4, as printers' 64ths have no third. */
let paper = false;

/** Prepare the canvas of a scroller for what is in view; the whole is width × height. */
function viewport(scroller, width, height) {
  const [spacer] = scroller.children, [canvas] = spacer.children, ratio = paper ? 4 : devicePixelRatio || 1, whole = paper && height <= 1400;
  spacer.style.width = width + "px";
  spacer.style.height = height + "px";
  const wide = whole ? width : Math.min(width, scroller.clientWidth), high = whole ? height : Math.min(height, scroller.clientHeight);
  canvas.width = Math.round(wide * ratio);
  canvas.height = Math.round(high * ratio);
  canvas.style.width = wide + "px";
  canvas.style.height = high + "px";
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { pen, wide, high, left: whole ? 0 : scroller.scrollLeft, top: whole ? 0 : scroller.scrollTop };
}

/** A token cut to a width, with … where something is missing. */
function cut(pen, text, width, whole = text) {
  while (text.length > 1 && pen.measureText(whole === text ? text : text + "…").width > width) text = [...text].slice(0, -1).join("");
  return whole === text ? text : text + "…";
}
