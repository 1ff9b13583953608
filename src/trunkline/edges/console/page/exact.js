// JSON whose numbers stay what was written. A double rounds 9007199254740993 and 0.12345678901234567; what a person is
// shown, and what leaves this page, must not. A number that a double cannot hold is `JSON.rawJSON`, which is written as it
// was read; every other one is a number. Pure; tested with Node.

const MAY_BE_ROUNDED = /[\d.]{16}|\d[eE]/;

/** Whether this browser can do it. One that cannot rounds, and says so (main). */
export const is_possible = typeof JSON.rawJSON === "function";

/** The value of a JSON text. */
export function parse(text) {
  return is_possible && MAY_BE_ROUNDED.test(text) ? JSON.parse(text, keep) : JSON.parse(text);
}

function keep(_name, value, context) {
  if (typeof value !== "number" || form(context.source) === form(String(value))) return value;
  return JSON.rawJSON(context.source);
}

/** A number without the choices in writing it: `1.50`, `15e-1` and `1.5` are the same. */
function form(text) {
  const [, sign, whole, part = "", power = "0"] = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/.exec(text) ?? [];
  if (whole === undefined) return text;
  const digits = (whole + part).replace(/^0+/, "");
  const short = digits.replace(/0+$/, "");
  return short === "" ? "0" : `${sign}${short}e${BigInt(power) - BigInt(part.length) + BigInt(digits.length - short.length)}`;
}

/** Whether a value is a number that stays as it was written. */
export const isExact = (value) => is_possible && JSON.isRawJSON(value);

/** A number of either kind, rounded, to compare with. */
export const rounded = (value) => (isExact(value) ? Number(value.rawJSON) : value);
