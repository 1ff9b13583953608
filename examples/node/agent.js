// An OpenSentience agent in plain Node.js (18 or newer): no dependencies, nothing of Trunkline's but its address.
// Everything the protocol asks of an agent is here: frames, hello, tools, calls, streaming, cancel, heartbeats, reconnect.
'use strict';
const net = require('node:net');
const crypto = require('node:crypto');

const AGENT_ID = process.env.OPENSENTIENCE_AGENT_ID || 'com.example.node';
const SOCKET = process.env.OPENSENTIENCE_SOCKET;
const TOKEN = process.env.OPENSENTIENCE_SESSION_TOKEN;
delete process.env.OPENSENTIENCE_SESSION_TOKEN; // nothing we start inherits it
if (!SOCKET || !TOKEN) {
  console.error(`Needs OPENSENTIENCE_SOCKET and OPENSENTIENCE_SESSION_TOKEN.
Make a token with: trunkline token new opensentience --agent ${AGENT_ID}`);
  process.exit(2);
}

// --- the tools: a definition, a check of the input, and the work ---------------------------------------------------

class ToolFailure extends Error {
  constructor(code, message) { super(message); this.code = code; }
}

const sleep = (ms, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, ms);
  signal.addEventListener('abort', () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
});

const tools = {
  sha256: {
    description: 'The SHA-256 hash of a text.',
    input_schema: {
      type: 'object', properties: { text: { type: 'string' } }, required: ['text'], additionalProperties: false,
    },
    check: (input) => typeof input.text === 'string' && Object.keys(input).length === 1,
    run: async (input) => ({ sha256: crypto.createHash('sha256').update(input.text).digest('hex') }),
  },
  lines: {
    description: 'Shows numbered lines one after the other, and can be canceled between them.',
    input_schema: {
      type: 'object',
      properties: {
        count: { type: 'integer', minimum: 1, maximum: 1000 }, pause_ms: { type: 'integer', minimum: 0, maximum: 10000 },
      },
      required: ['count'],
      additionalProperties: false,
    },
    check: (input) => Number.isInteger(input.count) && input.count >= 1 && input.count <= 1000
      && (input.pause_ms === undefined || (Number.isInteger(input.pause_ms) && input.pause_ms >= 0))
      && Object.keys(input).every((name) => name === 'count' || name === 'pause_ms'),
    run: async (input, call) => {
      for (let n = 1; n <= input.count; n += 1) {
        call.stream('stdout', { text: `line ${n}\n` });
        await sleep(input.pause_ms ?? 100, call.signal);
      }
      return { lines: input.count };
    },
  },
};

// --- one connection ----------------------------------------------------------------------------------------------

const started = Date.now();
let attempts = 0;
let stopping = false;

function connect() {
  const tcp = /^tcp:\/\/(127\.0\.0\.1|localhost):(\d+)$/.exec(SOCKET);
  const socket = tcp ? net.connect(Number(tcp[2]), tcp[1]) : net.connect(SOCKET);
  const calls = new Map(); // call_id -> what its messages echo, its stream's number, how to cancel it
  let received = Buffer.alloc(0);
  let maxFrame = 4194304;
  let retryAfter = null;
  let heartbeat = null;
  let sessionId = null;

  function send(type, payload, extra = {}) {
    const message = { v: 1, type, id: crypto.randomUUID(), ts: new Date().toISOString(), ...extra, payload };
    const body = Buffer.from(JSON.stringify(message));
    if (body.length > maxFrame || socket.destroyed) return socket.destroyed;
    const prefix = Buffer.alloc(4);
    prefix.writeUInt32BE(body.length);
    socket.write(Buffer.concat([prefix, body]));
    return true;
  }

  async function run(message) {
    const { call_id: callId, tool_id: toolId, input } = message.payload;
    if (calls.has(callId)) return; // sent again while it runs: it has one result
    const echo = echoOf(message);
    const abort = new AbortController();
    calls.set(callId, { echo, abort });
    let seq = 0;
    const call = {
      signal: abort.signal,
      stream: (channel, data) => { seq += 1; send('agent.tool.stream', { call_id: callId, seq, channel, data }, echo); },
    };
    const startedAt = new Date().toISOString();
    let result;
    try {
      const tool = toolId.startsWith(`${AGENT_ID}/`) && tools[toolId.slice(AGENT_ID.length + 1)];
      if (!tool) throw new ToolFailure('tool.not_found', 'this agent does not offer the tool');
      if (!tool.check(input)) throw new ToolFailure('tool.invalid_input', 'the input does not match the schema');
      result = { status: 'succeeded', output: await tool.run(input, call) };
    } catch (error) {
      if (abort.signal.aborted) {
        result = { status: 'canceled', error: { code: 'tool.canceled', message: 'the call was canceled' } };
      } else {
        // Only our own words travel; what a library says may hold anything.
        const known = error instanceof ToolFailure;
        if (!known) console.error(error);
        result = {
          status: 'failed',
          error: { code: known ? error.code : 'tool.failed', message: known ? error.message : 'the tool failed' },
        };
      }
    }
    calls.delete(callId);
    const times = { started_at: startedAt, finished_at: new Date().toISOString() };
    if (!send('agent.tool.result', { call_id: callId, ...result, ...times }, echo)) {
      const error = { code: 'tool.output_too_large', message: 'the result does not fit into a frame' };
      send('agent.tool.result', { call_id: callId, status: 'failed', error, ...times }, echo);
    }
  }

  const handlers = {
    'core.welcome': (message) => {
      if (message.error) { // before the payload, which may be empty
        console.error(`refused: ${message.error.code}: ${message.error.message}`);
        process.exit(1);
      }
      attempts = 0;
      sessionId = message.payload.session_id;
      maxFrame = message.payload.max_frame_bytes;
      heartbeat = setInterval(() => send('agent.heartbeat', {
        session_id: sessionId, uptime_ms: Date.now() - started, inflight_calls: calls.size, status: 'ok',
      }), message.payload.heartbeat_interval_ms);
      send('agent.tools.register', {
        tools: Object.entries(tools).map(([name, { description, input_schema }]) => ({
          tool_id: `${AGENT_ID}/${name}`, name, description, input_schema, side_effects: false,
          capabilities: ['streaming', 'cancellation'],
        })),
      });
    },
    'core.tools.registered': (message) => {
      for (const { tool_id: id, error } of message.payload.rejected ?? []) console.error(`${id}: ${error.message}`);
      console.log(`registered: ${message.payload.registered.join(', ')}`);
    },
    'core.tool.call': run,
    'core.tool.cancel': (message) => {
      const call = calls.get(message.payload.call_id);
      const ack = { call_id: message.payload.call_id, accepted: Boolean(call) };
      send('agent.tool.cancel_ack', ack, { in_reply_to: message.id, ...(call ? call.echo : echoOf(message)) });
      if (call) call.abort.abort(new Error('canceled'));
    },
    'core.ping': (message) => send('agent.pong', {}, { in_reply_to: message.id, ...echoOf(message) }),
    'core.goodbye': (message) => { retryAfter = message.payload.retry_after_ms ?? null; },
    'core.error': (message) => console.error(`the exchange complains: ${message.error?.code}`),
  };

  socket.on('connect', () => send('agent.hello', {
    session_token: TOKEN, agent_id: AGENT_ID, agent_version: '1.0.0',
    protocol: { supported_versions: [1], capabilities: ['tools', 'streaming', 'cancellation'] },
  }));
  socket.on('data', (data) => {
    received = Buffer.concat([received, data]);
    while (received.length >= 4) {
      const size = received.readUInt32BE(0);
      if (size > maxFrame) { socket.destroy(); return; }
      if (received.length < 4 + size) return;
      let message;
      try { message = JSON.parse(received.subarray(4, 4 + size).toString('utf8')); } catch { socket.destroy(); return; }
      received = received.subarray(4 + size);
      if (handlers[message.type]) handlers[message.type](message);
      else if (message.request_id && !message.in_reply_to) { // an unknown type that expects a reply
        const error = { code: 'protocol.unknown_type', message: 'this agent does not know the type' };
        send('agent.error', {}, { in_reply_to: message.id, error, ...echoOf(message) });
      }
    }
  });
  socket.on('error', (error) => console.error(`no connection: ${error.code}`));
  socket.on('close', () => {
    clearInterval(heartbeat);
    for (const call of calls.values()) call.abort.abort(new Error('connection lost'));
    attempts += 1;
    const wait = retryAfter ?? Math.min(100 * 2 ** attempts, 10000) * (0.5 + Math.random() / 2);
    if (!stopping) setTimeout(connect, wait);
  });
  process.removeAllListeners('SIGTERM');
  process.on('SIGTERM', () => { stopping = true; socket.end(); setTimeout(() => process.exit(0), 100); });
}

function echoOf({ request_id, correlation_id, causation_id }) {
  return { request_id, correlation_id, causation_id }; // JSON.stringify leaves out what is undefined
}

connect();
