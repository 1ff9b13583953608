// A page's side of the Pylon bridge, with pusher-js or laravel-echo as they are published.
// node client.mjs LIBRARY URL KEY CWD SECRET_FILE; one JSON object a line says what happened.
import { createHmac } from "node:crypto";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [library, url, key, cwd, secretFile] = process.argv.slice(2);
const require = createRequire(`${process.cwd()}/`);
const Pusher = require("pusher-js");
const { protocol, hostname, port } = new URL(url);
const isSecure = protocol === "wss:";

const tell = (name, value) => console.log(JSON.stringify({ [name]: value }));
const once = (bind) => new Promise((done) => bind(done));

const options = {
  cluster: "",
  wsHost: hostname,
  wsPort: Number(port),
  wssPort: Number(port),
  forceTLS: isSecure,
  disableStats: true,
  enabledTransports: ["ws", "wss"],
  channelAuthorization: {
    customHandler: ({ socketId, channelName }, done) => {
      const secret = readFileSync(secretFile, "utf8").trim();
      const auth = `${key}:${createHmac("sha256", secret).update(`${socketId}:${channelName}`).digest("hex")}`;
      done(null, { auth });
    },
  },
};

const pusher = new Pusher(key, options);
pusher.connection.bind("state_change", ({ current }) => tell("state", current));
pusher.connection.bind("error", ({ error }) => tell("error", error?.data?.code ?? null));

if (library === "pusher-js") {
  const system = pusher.subscribe("pylon.system");
  const shown = await once((done) => system.bind("pylon.capabilities", done));
  tell("tools", shown.tools.map((tool) => tool.tool_id));
  system.trigger("client-pylon.ping", {});
  tell("pong", Object.keys(await once((done) => system.bind("pylon.system.pong", done))));

  const codex = pusher.subscribe("pylon.codex");
  await once((done) => codex.bind("pusher:subscription_succeeded", done));
  const connected = once((done) => codex.bind("pylon.codex.status", ({ status }) => status === "connected" && done(status)));
  codex.trigger("client-codex.connect", { workspaceId: "ws_1", cwd });
  tell("status", await connected);
  const event = once((done) => codex.bind("pylon.codex.event", done));
  const response = once((done) => codex.bind("pylon.codex.response", done));
  codex.trigger("client-codex.request", { workspaceId: "ws_1", requestId: "r1", method: "thread/start", params: {} });
  tell("response", await response);
  tell("event", await event);
} else {
  const { default: Echo } = await import(require.resolve("laravel-echo").replace("echo.common.js", "echo.js"));
  const echo = new Echo({ broadcaster: "pusher", key, client: pusher });
  tell("tools", (await once((done) => echo.channel("pylon.system").listen(".pylon.capabilities", done))).tools.map((tool) => tool.tool_id));
  const codex = echo.private("pylon.codex");
  await once((done) => codex.subscribed(done));
  const connected = once((done) => codex.listen(".pylon.codex.status", ({ status }) => status === "connected" && done(status)));
  codex.whisper("codex.connect", { workspaceId: "ws_1", cwd });
  tell("status", await connected);
  const event = once((done) => codex.listen(".pylon.codex.event", done));
  const response = once((done) => codex.listen(".pylon.codex.response", done));
  codex.whisper("codex.request", { workspaceId: "ws_1", requestId: "r1", method: "thread/start", params: {} });
  tell("response", await response);
  tell("event", await event);
}
pusher.disconnect();
tell("done", true);
