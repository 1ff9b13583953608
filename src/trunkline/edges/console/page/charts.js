// Two small drawings of the last two minutes: how many calls ended in each second, and how long they took.
// Canvas, because they are drawn again several times a second; the figures beside them say the same in words.

const BAR_GAP = 1;

function prepared(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

function colours(canvas) {
  const style = getComputedStyle(canvas);
  return { accent: style.color, bad: style.borderTopColor, line: style.outlineColor, muted: style.textDecorationColor };
}

/** A round number at or above the largest value, for the top of the scale. */
export function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((top) => top >= value);
}

function grid({ pen, width, height }, colour) {
  pen.strokeStyle = colour;
  pen.lineWidth = 1;
  pen.beginPath();
  for (const part of [0, 0.5]) {
    const y = Math.round(height * part) + 0.5;
    pen.moveTo(0, y);
    pen.lineTo(width, y);
  }
  pen.moveTo(0, height - 0.5);
  pen.lineTo(width, height - 0.5);
  pen.stroke();
}

/** Bars: `seconds` is a list of `{ended, failed}`, the oldest first. Returns the top of the scale. */
export function drawThroughput(canvas, seconds) {
  const area = prepared(canvas);
  const { accent, bad, line } = colours(canvas);
  const top = ceiling(Math.max(...seconds.map((one) => one.ended)));
  grid(area, line);
  const { pen, width, height } = area;
  const step = width / seconds.length;
  seconds.forEach(({ ended, failed }, at) => {
    const tall = (ended / top) * (height - 1);
    const red = (failed / top) * (height - 1);
    const x = at * step;
    pen.fillStyle = accent;
    pen.fillRect(x, height - tall, Math.max(1, step - BAR_GAP), tall - red);
    pen.fillStyle = bad;
    pen.fillRect(x, height - red, Math.max(1, step - BAR_GAP), red);
  });
  return top;
}

/** Two lines on a logarithmic scale from 1 ms up: `seconds` is a list of `{median, high}` in ms, null where none ended. */
export function drawLatency(canvas, seconds) {
  const area = prepared(canvas);
  const { accent, muted, line } = colours(canvas);
  const largest = Math.max(10, ...seconds.map((one) => one.high ?? 0));
  const decades = Math.ceil(Math.log10(largest));
  grid(area, line);
  const { pen, width, height } = area;
  const step = width / seconds.length;
  const y = (ms) => height - 2 - (Math.log10(Math.max(1, ms)) / decades) * (height - 4);
  const stroke = (name, colour, thick) => {
    pen.strokeStyle = colour;
    pen.fillStyle = colour;
    pen.lineWidth = thick;
    pen.beginPath();
    let is_down = false;
    seconds.forEach((one, at) => {
      if (one[name] === null) return;
      const x = (at + 0.5) * step;
      if (is_down) pen.lineTo(x, y(one[name]));
      else pen.moveTo(x, y(one[name]));
      is_down = true;
    });
    pen.stroke();
    seconds.forEach((one, at) => {
      if (one[name] !== null) pen.fillRect((at + 0.5) * step - thick / 2 - 0.5, y(one[name]) - thick / 2 - 0.5, thick + 1, thick + 1);
    });
  };
  stroke("high", muted, 1);
  stroke("median", accent, 1.5);
  return 10 ** decades;
}
