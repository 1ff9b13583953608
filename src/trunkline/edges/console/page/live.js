// The live line: a WebSocket in Pusher's protocol to the page's own origin, on which the record is followed as it grows.
// Owns connecting, coming back with a pause that grows, and the number after which entries are wanted; what entries mean
// is the store's. After a loss the record is followed from the last entry that was seen, so nothing is missing.

import { post } from "./api.js";
import { parse } from "./exact.js";
import * as store from "./store.js";

const FIRST_PAUSE_MS = 300;
const LONGEST_PAUSE_MS = 3000;
// The exchange says something at least this often (figures come once a second); a line that is silent for longer is dead.
const SILENCE_MS = 40_000;
const SIGNED_OUT = 4009;
// A page that was away for longer starts anew: nobody reads a hundred thousand entries again.
const MAX_CAUGHT_UP = 20_000;
// So many entries from before it was opened fill the page at once.
const FROM_BEFORE = 1000;

const CHANNELS = ["private-feed", "private-registry", "private-figures"];

export class Line {
  /** `signedOut` is called when the exchange does not know this sign-in any more. */
  constructor(signedOut) {
    this._signedOut = signedOut;
    this._pause_ms = FIRST_PAUSE_MS;
    this._socket = null;
    this._timer = null;
    this._watch = null;
    this._is_over = false;
    addEventListener("online", () => this._soon(0));
  }

  open() {
    this._connect();
  }

  close() {
    this._is_over = true;
    clearTimeout(this._timer);
    clearTimeout(this._watch);
    this._socket?.close();
  }

  _connect() {
    if (this._is_over || this._socket) return;
    clearTimeout(this._timer);
    const socket = new WebSocket(`${location.origin.replace(/^http/, "ws")}/console/live`);
    this._socket = socket;
    socket.addEventListener("message", (message) => {
      if (socket !== this._socket) return;
      this._listen();
      this._hear(parse(message.data));
    });
    socket.addEventListener("close", (event) => {
      if (socket === this._socket) this._lost(event.code);
    });
    this._listen();
  }

  _listen() {
    clearTimeout(this._watch);
    this._watch = setTimeout(() => {
      this._socket?.close();
      this._lost(0);
    }, SILENCE_MS);
  }

  _lost(code) {
    this._socket = null;
    clearTimeout(this._watch);
    if (this._is_over) return;
    if (code === SIGNED_OUT) {
      this._is_over = true;
      this._signedOut();
      return;
    }
    store.lineIs("lost");
    this._soon(this._pause_ms * (0.75 + Math.random() / 2));
    this._pause_ms = Math.min(LONGEST_PAUSE_MS, this._pause_ms * 1.7);
  }

  _soon(after_ms) {
    if (this._is_over || this._socket) return;
    clearTimeout(this._timer);
    this._timer = setTimeout(() => this._connect(), after_ms);
  }

  _say(event, data, channel) {
    if (this._socket?.readyState === WebSocket.OPEN) this._socket.send(JSON.stringify({ event, data, ...(channel && { channel }) }));
  }

  async _subscribe(socket_id) {
    const socket = this._socket;
    try {
      for (const channel of CHANNELS) {
        const { auth } = await post("/console/auth", { socket_id, channel_name: channel });
        if (socket !== this._socket) return;
        this._say("pusher:subscribe", { channel, auth });
      }
    } catch {
      socket.close();
    }
  }

  _hear(frame) {
    const data = typeof frame.data === "string" && frame.data !== "" ? parse(frame.data) : frame.data ?? {};
    switch (frame.event) {
      case "pusher:connection_established":
        this._subscribe(data.socket_id);
        break;
      case "pusher:ping":
        this._say("pusher:pong", {});
        break;
      case "pusher_internal:subscription_succeeded":
        if (frame.channel === "private-feed") this._follow(data.last);
        break;
      case "feed.batch":
        store.take(data.entries, data.output, data.upto);
        break;
      case "feed.behind":
        this._follow(data.last);
        break;
      case "registry.changed":
        store.takeRegistry(data);
        break;
      case "figures":
        store.takeFigures(data);
        break;
    }
  }

  /** Entries after the last one that was seen; of a page that was away for long, from now on. */
  _follow(last) {
    const { seen } = store.state;
    const is_anew = seen.last === null || seen.last > last || last - seen.last > MAX_CAUGHT_UP;
    if (is_anew) store.beginAt(Math.max(0, last - FROM_BEFORE));
    this._say("client-feed.follow", { after: store.state.seen.last }, "private-feed");
    this._pause_ms = FIRST_PAUSE_MS;
    store.lineIs("live");
    store.load();
  }
}
