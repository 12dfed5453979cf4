-- Wake-up calls (queue_app.rows.wake). A worker whose claim left slots free is idle, and the claim says so in its own
-- transaction. What brings work calls one idle worker for what it brought; a claim that fills its worker calls the next.

-- The calls of each worker that has claimed: when it was called and has not heard it yet, and whether its rows changed.
CREATE UNLOGGED TABLE queue_app_rows_call (
    worker_id uuid PRIMARY KEY,
    idle bool NOT NULL,
    seen timestamptz NOT NULL,  -- about when it claimed last
    woken timestamptz,
    told bool NOT NULL DEFAULT false
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Whether a worker can run the tasks of a lane.
CREATE FUNCTION queue_app_worker_runs_1(lane queue_app_rows_lane, w queue_app_worker) RETURNS bool
LANGUAGE sql STABLE AS $$
    SELECT w.status = 'active' AND w.drain_requested_at IS NULL AND lane.task_type = ANY (w.task_types)
        AND (w.queues = '{}' OR lane.queue = ANY (w.queues)) AND lane.capabilities <@ w.capabilities
        AND lane.weight <= w.concurrency
$$;

-- Calls as few idle workers as can run what may start now, and returns how many: of the lanes with the hashes `pushed`; of
-- those that wait for the slots of the ended tasks `freed`, unless the worker that had one can claim them; else of any.
CREATE FUNCTION queue_app_wake_1(pushed bigint[], freed uuid[]) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    most CONSTANT int := 200;  -- lanes that one call looks at
    now_at CONSTANT timestamptz := clock_timestamp();
    lanes queue_app_rows_lane[]; w queue_app_worker; number int := 0;
BEGIN
    IF NOT EXISTS (SELECT FROM queue_app_rows_call WHERE idle AND woken IS NULL) THEN
        RETURN 0;
    ELSIF pushed IS NOT NULL THEN
        lanes := ARRAY(SELECT l FROM queue_app_rows_lane AS l WHERE l.hash = ANY (pushed) AND l.behind = '');
    ELSIF freed IS NOT NULL THEN
        lanes := ARRAY(
            SELECT l FROM (
                (SELECT x AS l FROM queue_app_rows_lane AS x WHERE x.behind <> '' AND x.behind IN (
                    SELECT unnest(ARRAY['q:' || t.queue, 't:' || t.task_type, 'k:' || t.concurrency_key,
                        'u:' || t.queue || chr(30) || t."user"])
                    FROM queue_app_task AS t WHERE t.id = ANY (freed)
                ) LIMIT most)
                UNION ALL
                (SELECT x AS l FROM queue_app_rows_lane AS x WHERE x.behind = ''
                    AND EXISTS (SELECT FROM queue_app_runtimesettings WHERE id = 1 AND max_concurrent IS NOT NULL)
                ORDER BY x.ordered, x.band, x.head, x.head_id LIMIT most)
            ) AS waiting
            WHERE NOT EXISTS (
                SELECT FROM queue_app_task AS t JOIN queue_app_worker AS had ON had.id = t.worker_id
                WHERE t.id = ANY (freed) AND queue_app_worker_runs_1(l, had)
            )
        );
    ELSE
        lanes := ARRAY(
            (SELECT x FROM queue_app_rows_lane AS x WHERE x.behind = '' ORDER BY x.ordered, x.band, x.head, x.head_id LIMIT most)
            UNION ALL
            (SELECT x FROM queue_app_rows_gate AS k JOIN queue_app_rows_lane AS x ON x.behind = k.gate
             WHERE k.closed AND k.opens <= extract(epoch FROM now_at) * 1e6 AND x.behind <> '' LIMIT most)
        );
    END IF;
    -- A worker that was called a moment ago, and has not claimed since, claims these as well.
    FOR w IN
        SELECT worker.* FROM queue_app_rows_call AS c JOIN queue_app_worker AS worker ON worker.id = c.worker_id
        WHERE c.idle AND c.woken > now_at - interval '0.1 s'
    LOOP
        lanes := ARRAY(SELECT l FROM unnest(lanes) AS l WHERE NOT queue_app_worker_runs_1(l, w));
    END LOOP;
    WHILE cardinality(lanes) > 0 LOOP
        SELECT worker.* INTO w FROM queue_app_rows_call AS c JOIN queue_app_worker AS worker ON worker.id = c.worker_id
        WHERE c.idle AND c.woken IS NULL AND c.seen > now_at - interval '13 s'
            AND EXISTS (SELECT FROM unnest(lanes) AS l WHERE queue_app_worker_runs_1(l, worker))
        LIMIT 1 FOR UPDATE OF c SKIP LOCKED;
        EXIT WHEN NOT FOUND;
        UPDATE queue_app_rows_call SET woken = now_at WHERE worker_id = w.id;
        PERFORM pg_notify('taskqueue_' || w.id, '');
        number := number + 1;
        lanes := ARRAY(SELECT l FROM unnest(lanes) AS l WHERE NOT queue_app_worker_runs_1(l, w));
    END LOOP;
    RETURN number;
END $$;

-- Records whether the claim of a worker left slots free: while nothing changes, once in some seconds. A claim that filled its
-- worker calls the next one, for more may wait.
CREATE FUNCTION queue_app_claimed_1(worker uuid, is_idle bool) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    now_at CONSTANT timestamptz := clock_timestamp();
BEGIN
    IF NOT EXISTS (
        SELECT FROM queue_app_rows_call WHERE worker_id = worker AND idle = is_idle AND seen > now_at - interval '4 s'
    ) THEN
        INSERT INTO queue_app_rows_call AS c (worker_id, idle, seen) VALUES (worker, is_idle, now_at)
        ON CONFLICT (worker_id) DO UPDATE SET idle = EXCLUDED.idle, seen = EXCLUDED.seen;
    END IF;
    IF NOT is_idle THEN PERFORM queue_app_wake_1(NULL, NULL); END IF;
END $$;
