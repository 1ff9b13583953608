// What differs between two texts, line by line, and between two JSON values, path by path. Pure; tested with Node.

import { isExact } from "./exact.js";

// Longer texts are shown as removed and added whole: the table below grows with the product of both.
const MAX_CELLS = 4_000_000;

/** Lines of both texts as `{kind: "same" | "removed" | "added", text}`, by their longest common subsequence. */
export function lines(before, after) {
  const old = split(before);
  const young = split(after);
  let start = 0;
  while (start < old.length && start < young.length && old[start] === young[start]) start += 1;
  let end = 0;
  while (end < old.length - start && end < young.length - start && old.at(-1 - end) === young.at(-1 - end)) end += 1;
  const head = old.slice(0, start).map((text) => ({ kind: "same", text }));
  const tail = old.slice(old.length - end).map((text) => ({ kind: "same", text }));
  return [...head, ...middle(old.slice(start, old.length - end), young.slice(start, young.length - end)), ...tail];
}

function split(text) {
  if (text === "" || text === null || text === undefined) return [];
  const all = String(text).split("\n");
  if (all.at(-1) === "") all.pop();
  return all;
}

function middle(old, young) {
  const removed = (text) => ({ kind: "removed", text });
  const added = (text) => ({ kind: "added", text });
  if (old.length * young.length > MAX_CELLS) return [...old.map(removed), ...young.map(added)];
  const width = young.length + 1;
  const common = new Uint32Array((old.length + 1) * width);
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = young.length - 1; j >= 0; j -= 1) {
      common[i * width + j] =
        old[i] === young[j]
          ? common[(i + 1) * width + j + 1] + 1
          : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  const found = [];
  let i = 0;
  let j = 0;
  while (i < old.length && j < young.length) {
    if (old[i] === young[j]) {
      found.push({ kind: "same", text: old[i] });
      i += 1;
      j += 1;
    } else if (common[(i + 1) * width + j] >= common[i * width + j + 1]) {
      found.push(removed(old[i]));
      i += 1;
    } else {
      found.push(added(young[j]));
      j += 1;
    }
  }
  return [...found, ...old.slice(i).map(removed), ...young.slice(j).map(added)];
}

/** The same with long stretches that did not change left out: `{kind: "skipped", count}` stands for them. */
export function hunks(all, around = 3) {
  const near = new Uint8Array(all.length);
  all.forEach((line, at) => {
    if (line.kind === "same") return;
    for (let place = Math.max(0, at - around); place <= Math.min(all.length - 1, at + around); place += 1) near[place] = 1;
  });
  const found = [];
  let skipped = 0;
  all.forEach((line, at) => {
    if (near[at]) {
      if (skipped) found.push({ kind: "skipped", count: skipped });
      skipped = 0;
      found.push(line);
    } else skipped += 1;
  });
  if (skipped && found.length) found.push({ kind: "skipped", count: skipped });
  return found;
}

/** Paths at which two JSON values differ: `{path, kind: "added" | "removed" | "changed", before, after}`. */
export function values(before, after, path = "") {
  if (Object.is(before, after) || (isExact(before) && isExact(after) && before.rawJSON === after.rawJSON)) return [];
  const is_tree = (value) => value !== null && typeof value === "object" && !isExact(value);
  if (is_tree(before) && is_tree(after) && Array.isArray(before) === Array.isArray(after)) {
    const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
    return names.flatMap((name) => {
      const place = Array.isArray(before) ? `${path}[${name}]` : path ? `${path}.${name}` : name;
      if (!Object.hasOwn(before, name)) return [{ path: place, kind: "added", after: after[name] }];
      if (!Object.hasOwn(after, name)) return [{ path: place, kind: "removed", before: before[name] }];
      return values(before[name], after[name], place);
    });
  }
  return [{ path: path || "(all)", kind: "changed", before, after }];
}
