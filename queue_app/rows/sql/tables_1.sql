-- The index in PostgreSQL (queue_app.rows): derived from the rows of tasks, so a crash may empty it.

-- What the index carries: the generation that it was built for (ready, rebuilding), the stamp of its last claim (µs), and the
-- worker that waits until a limit opens by time (µs), and the orders of queues that its lanes say.
CREATE UNLOGGED TABLE queue_app_rows_state (
    id smallint PRIMARY KEY CHECK (id = 1), number bigint NOT NULL, state text NOT NULL, stamp bigint NOT NULL DEFAULT 0,
    watcher uuid, watched float8, orders text[] NOT NULL DEFAULT '{}'
);
-- A lane: the waiting tasks of one address and own band. Its head is at or before its first task. `behind`: the closed gate
-- at which it stands. `ordered`: what its queue goes by, if not by heads alone: arrival, or the turns of owners (user, key).
-- A claim says it of new lanes.
CREATE UNLOGGED TABLE queue_app_rows_lane (
    hash bigint NOT NULL, band smallint NOT NULL, queue varchar NOT NULL, task_type varchar NOT NULL,
    capabilities varchar[] NOT NULL, "user" varchar NOT NULL, concurrency_key varchar NOT NULL, weight smallint NOT NULL,
    head timestamptz NOT NULL, head_id uuid NOT NULL, behind text NOT NULL DEFAULT '',
    ordered text NOT NULL DEFAULT '',
    owner varchar COLLATE "C" GENERATED ALWAYS AS (CASE ordered WHEN 'user' THEN "user" WHEN 'key' THEN concurrency_key END) STORED,
    PRIMARY KEY (hash, band, queue, task_type, "user", concurrency_key, weight, capabilities)
);
CREATE INDEX queue_app_rows_lane_open ON queue_app_rows_lane (ordered, band, head, head_id) WHERE behind = '';
CREATE INDEX queue_app_rows_lane_queue ON queue_app_rows_lane (queue, ordered, band, head, head_id) WHERE behind = '';
CREATE INDEX queue_app_rows_lane_type ON queue_app_rows_lane (task_type, ordered, band, head, head_id) WHERE behind = '';
CREATE INDEX queue_app_rows_lane_behind ON queue_app_rows_lane (behind, band, head, head_id) WHERE behind <> '';
CREATE INDEX queue_app_rows_lane_owner ON queue_app_rows_lane (queue, owner, band, head, head_id) WHERE owner IS NOT NULL;
-- The heavy tasks for which a worker drains (`lane`: queue_app_drained_1), until it has the slots for one.
CREATE UNLOGGED TABLE queue_app_rows_reservation (holder uuid PRIMARY KEY, lane text NOT NULL, until timestamptz NOT NULL);
-- A gate: its rate and minimum delay (µs, as GCRA), and whether lanes stand behind it until slots are free (`cap`) or time
-- has come (`opens`).
CREATE UNLOGGED TABLE queue_app_rows_gate (
    gate text PRIMARY KEY, since float8 NOT NULL, tat float8, "interval" float8, next float8,
    closed bool NOT NULL DEFAULT false, cap int, opens float8
);
CREATE INDEX queue_app_rows_gate_closed ON queue_app_rows_gate (opens) WHERE closed;
-- The next turns of the owners in a fair queue, by effective band; the owner \x1e holds the turn taken last. `waits`: the owner
-- may have a lane that stands behind no gate. If its turn is before the one taken last, it is 0 here and counts as that one.
CREATE UNLOGGED TABLE queue_app_rows_turn (
    queue varchar NOT NULL, band smallint NOT NULL, owner varchar COLLATE "C" NOT NULL, turn float8 NOT NULL, waits bool NOT NULL,
    PRIMARY KEY (owner, queue, band)
);
CREATE INDEX queue_app_rows_turn_next ON queue_app_rows_turn (queue, band, waits, turn, owner);
CREATE UNLOGGED TABLE queue_app_rows_lock (name text PRIMARY KEY, token text NOT NULL, until timestamptz NOT NULL);
CREATE UNLOGGED TABLE queue_app_rows_counter (
    name text NOT NULL, shard smallint NOT NULL, count bigint NOT NULL, expires timestamptz, PRIMARY KEY (name, shard)
);
-- A claim asks which queues have another order than fifo, and whether any cap is in force, among many thousand queues or limits.
CREATE INDEX queue_app_rows_ordered ON queue_app_queue ("order", name) WHERE "order" <> 'fifo';
CREATE INDEX queue_app_rows_capped ON queue_app_queue (name)
    WHERE max_concurrent IS NOT NULL OR max_concurrent_per_user IS NOT NULL;
CREATE INDEX queue_app_rows_capped_limit ON queue_app_limit (name) WHERE max_concurrent IS NOT NULL;
