// A worker in another language: node worker.mjs https://example.org tqw_… [queue …]
// It needs nothing but HTTP. The rules: name what you hold with every poll until its result was accepted;
// send a heartbeat every few seconds; stop what the answer cancels; drop what is lost.
const [server, token, ...queues] = process.argv.slice(2);
const SLOTS = 4;
const held = new Map(); // task_id -> {task, stop: AbortController}
let worker, draining = false, done = 0, free = 0, learnt = false;

// Thrown by a function: not now, and no other task of this type (or queue, or key) for that number of seconds. No failure.
class Throttle extends Error {
  constructor(seconds, scope = "type") { super(`throttled for ${seconds} s`); this.throttle = { seconds, scope }; }
}

// The functions by task type. Each gets (parameters, args, task, signal) and returns what JSON can hold.
const handlers = {
  "tests.integration.app.tasks.add": (parameters, args) => (parameters.a ?? args[0]) + (parameters.b ?? args[1]),
  "tests.integration.app.tasks.fail": (parameters, args) => { throw new Error(parameters.message ?? args[0]); },
  "tests.integration.app.tasks.hold": (_parameters, _args, _task, signal) =>
    new Promise((_, reject) => signal.addEventListener("abort", () => reject(new Error("cancelled")))),
  "tests.integration.app.tasks.told_to_wait": () => { throw new Throttle(60); },
};
// Functions to load when tasks of their type wait and no worker serves it; elsewhere this might be an import().
const loaders = { "tests.integration.app.late.found": async () => () => "found" };

async function call(path, body) {
  const response = await fetch(`${server}/internal/workers/${path}`, {
    method: "POST",
    headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.detail), { status: response.status, code: answer.code });
  return answer;
}

async function run(task, polledAt) {
  const stop = new AbortController();
  held.set(task.task_id, { task, stop });
  const timer = setTimeout(() => stop.abort("timeout"), task.timeout_seconds * 1000);
  const report = { task_id: task.task_id, attempt: task.attempt, leased_at: task.leased_at };
  const isLate = performance.now() - polledAt > (task.start_within_ms ?? Infinity); // a rate no longer covers its start
  try {
    const result = isLate ? null : await handlers[task.task_type](task.parameters, task.args, task, stop.signal);
    Object.assign(report, isLate ? { status: "released" } : { status: "completed", result: result ?? null });
  } catch (error) {
    const reason = stop.signal.aborted ? (stop.signal.reason === "timeout" ? "timeout" : "cancelled") : "error";
    Object.assign(report, error instanceof Throttle ? { status: "throttled", throttle: error.throttle }
      : { status: "failed", error: { class: error.name, message: error.message, reason } });
  }
  clearTimeout(timer);
  while (held.has(task.task_id)) { // the result may be sent twice: the second is refused, and nothing happens
    try { await call(`${worker}/result`, report); done++; held.delete(task.task_id); }
    catch (error) { if (error.status < 500) held.delete(task.task_id); else await sleep(1000); }
  }
}

async function beat() {
  const running = [...held.values()].map(({ task: { task_id, attempt, leased_at } }) => ({ task_id, attempt, leased_at }));
  const said = { running, draining, tasks_done: done, free_slots: free, ...(learnt && { task_types: Object.keys(handlers) }) };
  const answer = await call(`${worker}/heartbeat`, said);
  if (said.task_types) learnt = false;
  for (const id of [...answer.cancel, ...answer.lost]) held.get(id)?.stop.abort("cancelled");
  if (answer.drain) draining = true;
  for (const type of answer.unserved) {
    if (!(type in loaders) || type in handlers) continue;
    handlers[type] = await loaders[type]();
    learnt = true;
  }
  if (answer.again) await beat(); // PostgreSQL has restarted
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
for (const name of ["SIGTERM", "SIGINT"]) process.on(name, () => { draining = true; });
({ worker_id: worker } = await call("register", {
  name: `node:${process.pid}`, queues, task_types: Object.keys(handlers), capacity: SLOTS, heartbeat_seconds: 10,
}));
const heartbeat = setInterval(() => beat().catch((error) => { if (error.status < 500) process.exit(3); }), 2000);
while (!draining) {
  const want = SLOTS - held.size;
  if (want <= 0) { free = 0; await sleep(50); continue; }
  try {
    const polledAt = performance.now();
    const { tasks, notified } = await call(`${worker}/poll`, { available_capacity: want, wait: 2, holding: [...held.keys()] });
    free = want - tasks.length; // slots for which there was no task; the scheduler asks why if a task waits
    tasks.forEach((task) => run(task, polledAt));
    if (notified) await beat(); // a task was cancelled, or the worker should drain
  } catch (error) { if (error.status < 500) process.exit(3); await sleep(1000); }
}
while (held.size) await sleep(50);
clearInterval(heartbeat);
await call(`${worker}/deregister`, { tasks_done: done });
