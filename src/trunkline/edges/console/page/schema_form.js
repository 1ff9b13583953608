// A form from a JSON Schema, as data: which fields there are, and the value that somebody's entries make. Pure; the view
// `tools` turns fields into inputs. Whatever a schema says that has no input of its own is a field of JSON, so each tool
// can be tried. The exchange checks the input; what is found here only saves a round trip.

import { is_possible, parse, rounded } from "./exact.js";

const JSON_NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;
// A text that may be longer gets several lines.
const ONE_LINE_CHARS = 200;
const LONG_NAMES = /^(content|text|body|message|code|script|prompt|query|description|task)$/i;

/** The fields of a schema; one field of JSON named "" if it has no properties that could be shown. */
export function fields(schema) {
  const properties = isTree(schema) && isTree(schema.properties) ? schema.properties : null;
  const is_object = isTree(schema) && (schema.type === undefined || schema.type === "object");
  if (!is_object || properties === null) {
    const is_closed = isTree(schema) && schema.type === "object" && schema.additionalProperties === false;
    return is_closed ? [] : [{ name: "", kind: "json", required: true, description: "the input as JSON", start: "{}" }];
  }
  const required = new Set(Array.isArray(schema.required) ? schema.required : []);
  const found = Object.entries(properties).map(([name, one]) => field(name, isTree(one) ? one : {}, required.has(name)));
  return [...found.filter((one) => one.required), ...found.filter((one) => !one.required)];
}

function field(name, schema, required) {
  const shared = { name, required, description: typeof schema.description === "string" ? schema.description : "" };
  const type = Array.isArray(schema.type) ? schema.type.find((one) => one !== "null") : schema.type;
  const start = schema.default === undefined ? "" : schema.default;
  if (Array.isArray(schema.enum)) return { ...shared, kind: "choice", options: schema.enum, start };
  if (schema.const !== undefined) return { ...shared, kind: "choice", options: [schema.const], start: schema.const };
  if (type === "boolean") return { ...shared, kind: "switch", start: start === true };
  if (type === "integer" || type === "number") {
    const bounds = { min: rounded(schema.minimum), max: rounded(schema.maximum) };
    return { ...shared, kind: type, ...bounds, start: start === "" ? "" : JSON.stringify(start) };
  }
  if (type === "string") {
    const is_long = (schema.maxLength ?? 0) > ONE_LINE_CHARS || LONG_NAMES.test(name);
    const bounds = { shortest: schema.minLength, longest: schema.maxLength };
    return { ...shared, kind: is_long ? "lines" : "line", ...bounds, start: typeof start === "string" ? start : JSON.stringify(start) };
  }
  return { ...shared, kind: "json", start: start === "" ? "" : JSON.stringify(start, null, 2) };
}

/** The value of one entry: `{value}`, `{absent: true}` or `{problem}`. An entry is a text, of a switch a truth value. */
export function read(field, entry) {
  if (field.kind === "switch") return entry === field.start && !field.required ? { absent: true } : { value: entry };
  const text = String(entry ?? "");
  if (field.kind === "choice") {
    if (text === "") return missing(field);
    return { value: field.options[Number(text)] };
  }
  if (field.kind === "line" || field.kind === "lines") {
    // An empty file or message may be meant; an empty name or path was forgotten.
    const may_be_empty = field.kind === "lines" && field.required && !field.shortest;
    if (text === "" && !may_be_empty) return missing(field);
    if (field.longest !== undefined && [...text].length > field.longest) {
      return { problem: `${field.name}: at most ${field.longest} characters` };
    }
    return { value: text };
  }
  if (text.trim() === "") return missing(field);
  if (field.kind === "integer" || field.kind === "number") return number(field, text.trim());
  try {
    return { value: parse(text) };
  } catch (error) {
    return { problem: `${field.name || "input"}: not JSON (${error.message})` };
  }
}

function number(field, text) {
  const value = Number(text);
  const is_whole = field.kind !== "integer" || Number.isInteger(value);
  if (!Number.isFinite(value) || !is_whole) {
    return { problem: `${field.name}: expected ${field.kind === "integer" ? "a whole number" : "a number"}` };
  }
  if (!Number.isSafeInteger(value) && Number.isInteger(value) && !(is_possible && /^-?[1-9]\d*$/.test(text))) {
    return { problem: `${field.name}: a number this large has to be written in digits alone` };
  }
  if (field.min !== undefined && value < field.min) return { problem: `${field.name}: at least ${field.min}` };
  if (field.max !== undefined && value > field.max) return { problem: `${field.name}: at most ${field.max}` };
  return { value: JSON_NUMBER.test(text) ? parse(text) : value };
}

function missing(field) {
  return field.required ? { problem: `${field.name || "input"}: is needed` } : { absent: true };
}

/** The input that all entries make together: `{input}` or `{problems}`. `entries` maps a field's name to its entry. */
export function input(all, entries) {
  if (all.length === 1 && all[0].name === "") {
    const { value, problem } = read(all[0], entries.get(""));
    return problem ? { problems: [problem] } : { input: value };
  }
  const problems = [];
  const pairs = [];
  for (const one of all) {
    const { value, absent, problem } = read(one, entries.get(one.name));
    if (problem) problems.push(problem);
    else if (!absent) pairs.push([one.name, value]);
  }
  return problems.length ? { problems } : { input: Object.fromEntries(pairs) };
}

function isTree(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}
