// Which of a call's arguments a person should read first. A help for the eye, not a judgement: the rules and the sandbox
// decide what may happen. What a space's own rules found in a command is said as they say it; beside that, signs are looked
// for where they mean something: those of commands in arguments that are commands, those of paths where a path stands.
// The text of a note is neither. Pure; tested with Node.

import { isExact } from "./exact.js";

// Names of arguments that say what is done, where and with whom, in the order in which they are shown.
const FIRST = [
  /^(commands?|cmd|script|code|sql|query|shell|argv|args)$/i,
  /^(url|uri|endpoint|host|address)$/i,
  /^(path|file|filename|folder|dir|directory|cwd|target|destination)$/i,
  /^(to|recipient|recipients|email|account|amount|price|currency)$/i,
  /^(env|environment|permissions|scope|force|recursive|overwrite|delete|confirm)$/i,
  /^(content|body|text|message|edits|data)$/i,
];

const IN_COMMANDS = [
  [/\brm\s+(-[a-z]*[rf][a-z]*\s+)+[^;&|\n]*/gi, "removes files without asking"],
  [/\b(mkfs\S*|dd\s+(if|of)=\S+|shred|wipefs)\b/gi, "overwrites disks"],
  [/\b(sudo|doas|su\s+-)\b/gi, "asks for more rights"],
  [/\bgit\s+push\s+(\S+\s+)*(--force(?!-with-lease)|-f)\b/gi, "overwrites a remote branch"],
  [/\bgit\s+(reset\s+--hard|clean\s+-[a-z]*f[a-z]*)/gi, "throws away changes"],
  [/\b(curl|wget)\b[^|\n]*\|\s*(ba|z|da)?sh\b/gi, "runs what it downloads"],
  [/\bchmod\s+(-R\s+)?[0-7]*777\b/gi, "opens files to everybody"],
  [/\bchmod\s+-R\b|\bchown\s+-R\b/gi, "changes rights of a whole folder"],
  [/\b(drop|truncate)\s+(table|database|schema)\b|\bdelete\s+from\s+\w+\s*(;|$)/gi, "deletes from a database"],
  [/:\(\)\s*\{\s*:\|:&\s*\};:/g, "starts processes without end"],
  [/>\s*\/dev\/(?!null)\S+/g, "writes to a device"],
  [/\b(kill\s+-9|killall|pkill|shutdown|reboot|systemctl\s+(stop|disable))\b/gi, "ends processes or the machine"],
];
const IN_PATHS = [
  [/(^|[\s"'=:])(\/etc\/|\/root\b|~\/\.|\/dev\/sd|\/boot\b|\.ssh\b|\.aws\b|id_rsa|\.env\b)\S*/gi, "touches private or system files"],
  [/(^|[\s"'/])\.\.\//g, "leaves its folder"],
];
const ANYWHERE = [
  // Characters that change how a text reads: another direction, no width, another terminal.
  // eslint-disable-next-line no-control-regex
  [/[\u0000-\u0008\u000b-\u001f\u007f\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]/g, "has invisible characters"],
];

const [COMMANDS, ADDRESSES, PATHS] = FIRST;

/** What an argument of this name holds: "command", "path" or "text". */
export function kindOf(name) {
  if (COMMANDS.test(name)) return "command";
  return ADDRESSES.test(name) || PATHS.test(name) ? "path" : "text";
}

const SIGNS = { command: [...IN_COMMANDS, ...IN_PATHS, ...ANYWHERE], path: [...IN_PATHS, ...ANYWHERE], text: ANYWHERE };

/** The stretches of a text that a person should look at: `{start, end, why}`, in order, none over another. */
export function signs(text, kind) {
  const found = [];
  for (const [pattern, why] of SIGNS[kind]) {
    for (const match of String(text).matchAll(pattern)) {
      if (match[0]) found.push({ start: match.index, end: match.index + match[0].length, why });
    }
  }
  found.sort((one, other) => one.start - other.start || other.end - one.end);
  let end = 0;
  return found.filter((sign) => {
    if (sign.start < end) return false;
    end = sign.end;
    return true;
  });
}

const INVISIBLE =
  // eslint-disable-next-line no-control-regex
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\u{e0000}-\u{e007f}]/gu;

/** A text in which every character can be seen: what has no shape of its own is shown by its number. */
export function visible(text) {
  return String(text ?? "").replace(INVISIBLE, (one) => `\u27e8${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`);
}

/** The texts in a value, each with its kind; in a list they are of the list's kind, in an object of their own name's. */
function texts(value, kind) {
  if (typeof value === "string") return [[value, kind]];
  if (Array.isArray(value)) return value.flatMap((one) => texts(one, kind));
  if (value !== null && typeof value === "object" && !isExact(value)) return Object.entries(value).flatMap(([key, one]) => [[key, "text"], ...texts(one, kindOf(key))]);
  return [];
}

// What a space's rules say when they ask about a command (workspace/policy), in the words of a mark.
const JUDGED = [
  [/^Destructive command/, "destructive command"],
  [/^A program is given a command/, "has a program run a command"],
  [/^Command cannot be parsed/, "cannot be read with certainty"],
];

/** What the rule that asked found in the command, in words; nothing where it was another rule. */
function judged({ rule = "", reason = "" } = {}) {
  return rule === "shell.approvalRequired" ? JUDGED.filter(([pattern]) => pattern.test(reason)).map(([, why]) => why) : [];
}

/** The arguments of a call with the most dangerous first: `{name, value, whys}`. `asked` is why a person is asked, if so. */
export function ordered(input, asked) {
  if (input === null || typeof input !== "object" || Array.isArray(input)) {
    return input === undefined ? [] : [{ name: "", value: input, whys: whysOf("", input) }];
  }
  const rank = (name) => {
    const at = FIRST.findIndex((pattern) => pattern.test(name));
    return at < 0 ? FIRST.length : at;
  };
  return Object.entries(input)
    .map(([name, value], place) => ({ name, value, whys: [...(name === "command" ? judged(asked) : []), ...whysOf(name, value)], place }))
    .sort((one, other) =>
      Math.sign(other.whys.length) - Math.sign(one.whys.length) || rank(one.name) - rank(other.name) || one.place - other.place,
    )
    .map(({ name, value, whys }) => ({ name, value, whys }));
}

function whysOf(name, value) {
  return [...new Set(texts(value, kindOf(name)).flatMap(([text, kind]) => signs(text, kind).map((sign) => sign.why)))];
}

/** All that is dangerous in an input, in words, without repeats. */
export function summary(input, asked) {
  return [...new Set(ordered(input, asked).flatMap((one) => one.whys))];
}
