// The last two minutes in figures: calls that ended in each second, how many of them failed, and how long they took.
// Also what counts as work: the time in which a person was asked does not. Pure; fed from the live line, read by the charts. Bounded: a second keeps a sample of its durations, whatever its rate.

export const SECONDS = 120;
const SAMPLE = 64;
// Calls above a call; bounded, should a chain lead in a circle.
const MAX_CHAIN = 32;

/** A person was asked about a call for so long: those for which it was made waited meanwhile, and did not work. */
export function waitedAbove(call, causeOf, ms) {
  let above = causeOf(call);
  for (let step = 0; above && step < MAX_CHAIN; step += 1) {
    above.asked_ms = (above.asked_ms ?? 0) + ms;
    above = causeOf(above);
  }
}

export class Figures {
  constructor() {
    this._seconds = new Map();
  }

  /** A call ended at `at_ms` after `took_ms`; NaN if it never ran. */
  ended(at_ms, took_ms, is_failed) {
    const second = Math.floor(at_ms / 1000);
    let one = this._seconds.get(second);
    if (!one) {
      one = { ended: 0, failed: 0, sample: [] };
      this._seconds.set(second, one);
      this._forget(second);
    }
    one.ended += 1;
    if (is_failed) one.failed += 1;
    if (!Number.isFinite(took_ms)) return;
    if (one.sample.length < SAMPLE) one.sample.push(took_ms);
    else one.sample[Math.floor(Math.random() * SAMPLE)] = took_ms;
  }

  _forget(second) {
    if (this._seconds.size <= SECONDS * 2) return;
    for (const old of this._seconds.keys()) if (old < second - SECONDS * 2) this._seconds.delete(old);
  }

  /** The seconds up to now, the oldest first. */
  series(now_ms) {
    const last = Math.floor(now_ms / 1000);
    return Array.from({ length: SECONDS }, (_, at) => {
      const one = this._seconds.get(last - SECONDS + 1 + at);
      if (!one) return { ended: 0, failed: 0, median: null, high: null };
      const sorted = [...one.sample].sort((a, b) => a - b);
      return { ended: one.ended, failed: one.failed, median: quantile(sorted, 0.5), high: quantile(sorted, 0.95) };
    });
  }

  /** Over the last ten whole seconds: calls a second, the share that failed, the median and the 95th percentile. */
  now(now_ms) {
    const last = Math.floor(now_ms / 1000);
    let ended = 0;
    let failed = 0;
    const sample = [];
    for (let second = last - 10; second < last; second += 1) {
      const one = this._seconds.get(second);
      if (!one) continue;
      ended += one.ended;
      failed += one.failed;
      sample.push(...one.sample);
    }
    sample.sort((a, b) => a - b);
    return { rate: ended / 10, failed, median: quantile(sample, 0.5), high: quantile(sample, 0.95) };
  }
}

/** The value below which this share of a sorted list lies; null of an empty one. */
export function quantile(sorted, share) {
  if (!sorted.length) return null;
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];
}
