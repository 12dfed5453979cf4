-- Claims from rows: a queue_app_pick_1 per claim picks tasks in their order, as far as every gate allows; the statement after it
-- in the same transaction grants them. Claims stand in line behind the lock of generations.
--
-- A lane is what waits of one address (queue, type, capabilities, user, key, weight) and band; its head is at or before its first
-- task. A gate is a point at which limits apply: everything ('a'), a queue ('q:NAME'), a type ('t:NAME'), a key ('k:NAME'), the
-- pause and throttle of a family of keys ('f:NAME'), a user of a queue that limits its users ('u:QUEUE\30USER'). Lanes that meet a
-- closed gate stand behind it until it opens, so a claim does not look at them again.

-- Whether a worker can run the tasks of a lane. The `|| ''` keeps the planner from other indexes than those in order of heads.
CREATE FUNCTION queue_app_runs_1(
    lane queue_app_rows_lane, types text[], queues text[], offers text[], slots int
) RETURNS bool LANGUAGE sql IMMUTABLE AS $$
    SELECT lane.task_type || '' = ANY (types) AND (queues IS NULL OR lane.queue = ANY (queues))
        AND lane.capabilities <@ offers::varchar[] AND lane.weight <= slots
$$;

-- For which heavy tasks a worker drains that meets this lane: all of its address, whose user matters only where the queue
-- tells its users apart.
CREATE FUNCTION queue_app_drained_1(lane queue_app_rows_lane) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT concat_ws(chr(31), lane.queue, lane.task_type, lane.capabilities,
        CASE WHEN lane.ordered = 'user' OR EXISTS (SELECT FROM queue_app_queue
            WHERE name = lane.queue AND max_concurrent_per_user IS NOT NULL) THEN lane."user" ELSE '' END,
        lane.concurrency_key, lane.weight)
$$;

-- The first lane of an owner in a fair queue, among those of some own bands with heads between two times.
CREATE FUNCTION queue_app_lane_of_1(
    of_queue text, of_owner text, own_bands int[], own_lows timestamptz[], own_highs timestamptz[], skipped bigint[],
    types text[], queues text[], offers text[], slots int
) RETURNS SETOF queue_app_rows_lane LANGUAGE sql STABLE AS $$
    SELECT x.* FROM unnest(own_bands, own_lows, own_highs) AS own (band, low, high), LATERAL (
        SELECT x.* FROM queue_app_rows_lane AS x
        WHERE x.queue = of_queue COLLATE "default" AND x.owner = of_owner AND x.band = own.band
            AND x.head > own.low AND x.head <= own.high AND x.hash <> ALL (skipped)
            AND queue_app_runs_1(x, types, queues, offers, slots)
        ORDER BY x.head, x.head_id LIMIT 1
    ) AS x ORDER BY x.head, x.head_id LIMIT 1
$$;

-- The limits of a queue, a type or a key, as its row has them; times in µs.
CREATE FUNCTION queue_app_pace_1(
    of_scope text, of_name text, OUT paused bool, OUT cap int, OUT "interval" float8, OUT burst int, OUT delay float8,
    OUT throttled float8
) LANGUAGE sql STABLE AS $$
    SELECT r.paused, CASE WHEN r.adaptive = '' THEN r.max_concurrent
            ELSE GREATEST(r.min_concurrent, LEAST(r.current_concurrent, r.max_concurrent)) END,
        r.rate_seconds * 1e6 / r.rate_count, COALESCE(NULLIF(r.rate_burst, 0), r.rate_count),
        NULLIF(r.min_delay_seconds, 0) * 1e6, extract(epoch FROM r.throttled_until) * 1e6
    FROM (
        SELECT paused, adaptive, min_concurrent, current_concurrent, max_concurrent, rate_count, rate_seconds, rate_burst,
            min_delay_seconds, throttled_until
        FROM queue_app_queue WHERE of_scope = 'queue' AND name = of_name
        UNION ALL
        SELECT paused, adaptive, min_concurrent, current_concurrent, max_concurrent, rate_count, rate_seconds, rate_burst,
            min_delay_seconds, throttled_until
        FROM queue_app_limit WHERE scope = of_scope AND name = of_name
    ) AS r
$$;

-- How many tasks a gate lets start now (`room`, NULL: any number), at which time alone opens it (`opens`, µs), and why.
-- `used` has the slots that are taken by gate.
CREATE FUNCTION queue_app_gate_room_1(
    g text, used jsonb, t float8, OUT room int, OUT opens float8, OUT taken int, OUT cap int, OUT paused bool,
    OUT throttled float8, OUT burst int, OUT "interval" float8, OUT delay float8
) LANGUAGE plpgsql AS $$
DECLARE
    kind text := left(g, 1); own text := substr(g, 3); source text := g; p record; family record; bucket record;
    per float8; starts float8; next_at float8;
BEGIN
    taken := COALESCE((used ->> g)::int, 0);
    paused := false;
    IF kind = 'u' THEN
        SELECT max_concurrent_per_user INTO cap FROM queue_app_queue WHERE name = split_part(own, chr(30), 1);
    ELSIF kind = 'a' THEN
        SELECT r.paused, CASE WHEN r.adaptive = '' THEN r.max_concurrent
            ELSE GREATEST(r.min_concurrent, LEAST(r.current_concurrent, r.max_concurrent)) END INTO paused, cap
        FROM queue_app_runtimesettings AS r WHERE id = 1;
        paused := COALESCE(paused, false);
    ELSE
        SELECT * INTO p FROM queue_app_pace_1(CASE kind WHEN 'q' THEN 'queue' WHEN 't' THEN 'type' ELSE 'key' END, own);
        paused := COALESCE(p.paused, false);
        throttled := p.throttled;
        IF kind <> 'f' THEN
            cap := p.cap; "interval" := p."interval"; burst := p.burst; delay := p.delay;
        END IF;
        IF kind = 'k' AND strpos(own, ':') > 0 THEN  -- without limits of its own, a key has those of its family
            SELECT * INTO family FROM queue_app_pace_1('key', split_part(own, ':', 1));
            IF COALESCE(cap, "interval", delay) IS NULL THEN
                cap := family.cap; "interval" := family."interval"; burst := family.burst; delay := family.delay;
                source := 'k:' || split_part(own, ':', 1);
            END IF;
        END IF;
    END IF;
    IF cap IS NOT NULL THEN room := GREATEST(0, cap - taken); END IF;
    IF paused THEN room := 0; END IF;
    IF room = 0 THEN RETURN; END IF;
    IF throttled > t THEN room := 0; opens := throttled; RETURN; END IF;
    IF "interval" IS NULL AND delay IS NULL THEN RETURN; END IF;
    -- A bucket without a record was empty when its limit was set.
    SELECT b.tat, b."interval", b.next, COALESCE(s.since, t) AS since INTO bucket
    FROM (SELECT) AS one LEFT JOIN queue_app_rows_gate AS b ON b.gate = g LEFT JOIN queue_app_rows_gate AS s ON s.gate = source;
    IF "interval" IS NOT NULL THEN
        per := COALESCE(bucket."interval", "interval");
        starts := GREATEST(0, COALESCE(bucket.tat, bucket.since + burst * per) - t) / per;
        IF floor(burst - starts) < 1 THEN
            room := 0; opens := ceil(t + (starts - burst + 1) * per) + 1;
        ELSE
            room := LEAST(room, floor(burst - starts)::int);
        END IF;
    END IF;
    IF delay IS NOT NULL THEN
        next_at := COALESCE(bucket.next, bucket.since + delay);
        IF next_at > t THEN
            room := 0; opens := GREATEST(opens, next_at);
        ELSE
            room := LEAST(room, 1);
        END IF;
    END IF;
END $$;

-- Records the starts of a gate in its rate and its delay.
CREATE FUNCTION queue_app_record_starts_1(g text, number int, t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    r record;
BEGIN
    SELECT * INTO r FROM queue_app_gate_room_1(g, '{}', t);
    IF r."interval" IS NULL AND r.delay IS NULL THEN RETURN; END IF;
    INSERT INTO queue_app_rows_gate (gate, since) VALUES (g, t) ON CONFLICT DO NOTHING;
    UPDATE queue_app_rows_gate AS b SET
        tat = CASE WHEN r."interval" IS NULL THEN b.tat ELSE t + r."interval" * (number
            + GREATEST(0, COALESCE(b.tat, s.since + r.burst * COALESCE(b."interval", r."interval")) - t)
            / COALESCE(b."interval", r."interval")) END,
        "interval" = r."interval", next = t + r.delay
    FROM (SELECT COALESCE(max(since), t) AS since FROM queue_app_rows_gate
        WHERE gate = CASE WHEN g ~ '^k:[^:]+:' THEN 'k:' || split_part(g, ':', 2) ELSE g END) AS s
    WHERE b.gate = g;
END $$;

-- Lets lanes come back from behind a gate: the first `number` of each band and of the queues by arrival, and all of fair queues.
CREATE FUNCTION queue_app_open_lanes_1(
    gate text, number int, arrivals text[], fairs text[], shut text[], types text[], queues text[], offers text[], slots int
) RETURNS void LANGUAGE sql AS $$
    UPDATE queue_app_rows_lane AS l
    SET behind = '', ordered = CASE WHEN l.queue = ANY (arrivals) THEN 'arrival' ELSE '' END FROM (
        SELECT first.ctid FROM generate_series(0, 4) AS own (band), LATERAL (
            SELECT x.ctid FROM queue_app_rows_lane AS x
            WHERE x.behind = gate AND x.behind <> '' AND x.band = own.band AND x.queue <> ALL (fairs || arrivals)
                AND 't:' || x.task_type <> ALL (shut) AND queue_app_runs_1(x, types, queues, offers, slots)
            ORDER BY x.head, x.head_id LIMIT number
        ) AS first
        UNION ALL
        SELECT first.ctid FROM (
            SELECT x.ctid FROM queue_app_rows_lane AS x
            WHERE x.behind = gate AND x.behind <> '' AND x.queue = ANY (arrivals)
                AND 't:' || x.task_type <> ALL (shut) AND queue_app_runs_1(x, types, queues, offers, slots)
            ORDER BY x.head, x.head_id LIMIT number
        ) AS first
        UNION ALL
        SELECT x.ctid FROM queue_app_rows_lane AS x WHERE x.behind = gate AND x.behind <> '' AND x.queue = ANY (fairs)
    ) AS back WHERE l.ctid = back.ctid
$$;

-- Picks the most urgent tasks that a worker can run and no gate forbids, for up to `want` slots, and moves the heads of their
-- lanes on. Its answer is the setting taskqueue.pick, as JSON: state, generation, stamp (µs), ids in order, paced (ids that a
-- rate or a delay let start), wait (s until a limit allows the next start, for one of the workers; 0: claim again now).
CREATE FUNCTION queue_app_pick_1(
    worker uuid, types text[], queues text[], offers text[], slots int, want int, may_reserve bool
) RETURNS text LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_sort = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    most CONSTANT int := 150;  -- lanes without a task that may start; a claim then stops, and its worker claims again at once
    drawn CONSTANT int := 100;  -- lanes that it looks ahead
    few CONSTANT int := 8;  -- so many queues, types and lanes of a fair queue are looked at one by one
    of_queues text[]; of_types text[]; is_narrow bool;
    index_state record; now_at timestamptz; t float8; new_stamp bigint; waits float8[]; age float8;
    arrivals text[]; fairs text[]; takers text[]; special text[];
    lows timestamptz[] := array_fill('infinity'::timestamptz, ARRAY[25]);  -- by effective band, own band
    highs timestamptz[] := array_fill('-infinity'::timestamptz, ARRAY[25]);
    used jsonb := '{}'; rooms jsonb := '{}'; passed jsonb := '{}';  -- gate -> slots taken; room; starts of paced gates
    opened text[] := '{}'; shut text[] := '{}';  -- gates whose lanes come back one by one; those of types, fair queues without room
    picked uuid[] := '{}'; paced uuid[] := '{}'; skipped bigint[] := '{}'; opens_at float8; delay float8;
    e int := 0; free int := want; left_moves int := most; room int; n int; high timestamptz; bound timestamptz;
    pool queue_app_rows_lane[]; is_drawn bool := false; pool_end timestamptz; i int;
    best queue_app_rows_lane; turns queue_app_rows_lane[]; all_fairs int[]; orders text[]; asked int[]; of_turn int;
    is_first bool; r record; g text; gates text[]; closed_gate text; is_paced bool;
    ids uuid[]; locked uuid[]; next_at timestamptz; next_id uuid; start float8; last float8; past float8;
    own_bands int[]; own_lows timestamptz[]; own_highs timestamptz[];  -- the own bands that have lanes in the band e
BEGIN
    PERFORM pg_advisory_xact_lock(8386110886435094529);
    SELECT s.number, s.state, COALESCE(s.stamp, 0) AS stamp, s.orders INTO index_state
    FROM queue_app_rows_state AS s JOIN queue_app_indexgeneration AS i ON i.number = s.number WHERE s.id = 1 AND i.id = 1;
    IF index_state.state IS DISTINCT FROM 'ready' THEN
        RETURN set_config(
            'taskqueue.pick', '{"state": "rebuilding", "generation": 0, "stamp": 0, "ids": [], "paced": []}', true);
    END IF;
    now_at := clock_timestamp();
    t := extract(epoch FROM now_at) * 1e6;
    new_stamp := GREATEST(t::bigint, index_state.stamp + 1);
    IF EXISTS (SELECT FROM queue_app_worker WHERE id = worker AND status IN ('dead', 'stopped')) THEN free := 0; END IF;

    -- A task of own band b counts as one of band k from its age `age` on, until its next wait is over.
    waits := ARRAY(SELECT promote_after_seconds FROM queue_app_prioritypolicy ORDER BY priority);
    FOR b IN 0..4 LOOP
        age := 0;
        FOR k IN REVERSE b..0 LOOP
            highs[5 * k + b + 1] := now_at - make_interval(secs => age);
            IF k < 2 OR waits[k + 1] IS NULL THEN
                lows[5 * k + b + 1] := '-infinity';
                EXIT;
            END IF;
            age := age + waits[k + 1];
            lows[5 * k + b + 1] := now_at - make_interval(secs => age);
        END LOOP;
        highs[b + 5 * b + 1] := 'infinity';  -- the newest of a band count as its own, also by another clock
    END LOOP;
    arrivals := ARRAY(SELECT name FROM queue_app_queue WHERE "order" = 'arrival');
    fairs := ARRAY(SELECT name FROM queue_app_queue WHERE "order" = 'fair' AND fair_by <> '' ORDER BY name);
    takers := ARRAY(SELECT fair_by FROM queue_app_queue WHERE "order" = 'fair' AND fair_by <> '' ORDER BY name);
    special := arrivals || fairs;
    -- A worker of few queues or types looks at each; another one at all lanes, in their order.
    of_queues := CASE WHEN cardinality(queues) <= few THEN queues END;
    of_types := CASE WHEN of_queues IS NULL AND cardinality(types) <= few THEN types END;
    is_narrow := COALESCE(of_queues, of_types) IS NOT NULL;
    IF EXISTS (SELECT FROM queue_app_runtimesettings WHERE id = 1 AND max_concurrent IS NOT NULL)
        OR EXISTS (SELECT FROM queue_app_limit WHERE max_concurrent IS NOT NULL)
        OR EXISTS (SELECT FROM queue_app_queue WHERE max_concurrent IS NOT NULL OR max_concurrent_per_user IS NOT NULL) THEN
        SELECT COALESCE(jsonb_object_agg(gate, number), '{}') INTO used FROM (
            SELECT CASE GROUPING(queue, task_type, concurrency_key, "user")
                WHEN 15 THEN 'a' WHEN 7 THEN 'q:' || queue WHEN 11 THEN 't:' || task_type WHEN 13 THEN 'k:' || concurrency_key
                ELSE 'u:' || queue || chr(30) || "user" END AS gate, count(*) AS number
            FROM queue_app_task WHERE status = 'executing'
            GROUP BY GROUPING SETS ((), (queue), (task_type), (concurrency_key), (queue, "user"))
        ) AS held;
    END IF;
    SELECT * INTO r FROM queue_app_gate_room_1('a', used, t);
    IF r.room IS NOT NULL THEN rooms := jsonb_build_object('a', r.room); END IF;
    IF r.room = 0 THEN free := 0; END IF;

    -- Behind a gate that may be open now, those lanes come back that could start something: all of a fair queue, else the first.
    IF free > 0 THEN
        FOR g IN
            SELECT k.gate FROM queue_app_rows_gate AS k
            WHERE k.closed AND (k.opens <= t OR k.cap > COALESCE((used ->> k.gate)::int, 0))
        LOOP
            SELECT * INTO r FROM queue_app_gate_room_1(g, used, t);
            IF r.room = 0 THEN
                UPDATE queue_app_rows_gate AS k SET opens = r.opens, cap = CASE WHEN NOT r.paused THEN r.cap END
                WHERE k.gate = g;
                CONTINUE;
            END IF;
            PERFORM queue_app_open_lanes_1(g, LEAST(r.room, free), arrivals, fairs, shut, types, queues, offers, slots);
            IF EXISTS (SELECT FROM queue_app_rows_lane AS x WHERE x.behind = g AND x.behind <> '') THEN
                opened := opened || g;
            ELSIF r."interval" IS NULL AND r.delay IS NULL THEN
                DELETE FROM queue_app_rows_gate WHERE gate = g;
            ELSE
                UPDATE queue_app_rows_gate SET closed = false, opens = NULL, cap = NULL WHERE gate = g;
            END IF;
        END LOOP;
    END IF;

    IF index_state.orders <> arrivals || fairs || takers THEN
        UPDATE queue_app_rows_lane AS l SET ordered = '' WHERE l.ordered <> '';
        UPDATE queue_app_rows_state SET orders = arrivals || fairs || takers WHERE id = 1;
    END IF;
    IF special <> '{}' THEN  -- new lanes, and those that came back from behind a gate; their owners wait for turns
        WITH new AS (
            UPDATE queue_app_rows_lane AS l SET ordered = q.ordered
            FROM unnest(special, array_fill('arrival'::text, ARRAY[cardinality(arrivals)]) || takers) AS q (name, ordered)
            WHERE l.behind = '' AND l.queue = q.name AND l.ordered = '' RETURNING l.queue, l.band, l.owner
        )
        INSERT INTO queue_app_rows_turn AS o (queue, band, owner, turn, waits)
        SELECT DISTINCT queue, up, owner, 0, true FROM new, generate_series(LEAST(band, 1), band) AS up WHERE owner IS NOT NULL
        ON CONFLICT (queue, band, owner) DO UPDATE SET waits = true WHERE NOT o.waits;
    END IF;
    orders := ARRAY(SELECT DISTINCT unnest(takers)) || ARRAY[''];
    all_fairs := ARRAY(
        SELECT place FROM generate_subscripts(fairs, 1) AS place WHERE queues IS NULL OR fairs[place] = ANY (queues));
    asked := all_fairs;
    turns := array_fill(NULL::queue_app_rows_lane, ARRAY[cardinality(fairs)]);
    WHILE e <= 4 AND free > 0 LOOP
        -- The lanes with the lowest heads in the effective band e; the first one is taken from, up to the second.
        IF NOT is_drawn THEN
            SELECT COALESCE(array_agg(b), '{}'), array_agg(lows[5 * e + b + 1]), array_agg(highs[5 * e + b + 1])
            INTO own_bands, own_lows, own_highs
            FROM generate_series(0, 4) AS own (b) WHERE EXISTS (
                SELECT FROM unnest(orders) AS own (ordered), LATERAL (
                    SELECT FROM queue_app_rows_lane AS x
                    WHERE x.behind = '' AND x.ordered = own.ordered AND x.band = b
                        AND x.head > lows[5 * e + b + 1] AND x.head <= highs[5 * e + b + 1]
                    ORDER BY x.head, x.head_id LIMIT 1
                ) AS first);
            pool := ARRAY(
                SELECT found.l FROM (
                    SELECT first.l FROM unnest(own_bands, own_lows, own_highs) AS own (band, low, high), LATERAL (
                        SELECT x AS l FROM queue_app_rows_lane AS x
                        WHERE NOT is_narrow AND x.behind = '' AND x.ordered = '' AND x.band = own.band
                            AND x.head > own.low AND x.head <= own.high
                            AND x.queue <> ALL (special) AND x.hash <> ALL (skipped)
                            AND queue_app_runs_1(x, types, queues, offers, slots)
                        ORDER BY x.head, x.head_id LIMIT LEAST(free, drawn) + 1
                    ) AS first
                    UNION ALL
                    SELECT first.l FROM (
                        SELECT of.queue, '' AS ordered, own.* FROM unnest(of_queues) AS of (queue),
                            unnest(own_bands, own_lows, own_highs) AS own (band, low, high) WHERE of.queue <> ALL (special)
                        UNION ALL
                        SELECT of.queue, 'arrival', own.band, '-infinity', 'infinity'
                        FROM unnest(CASE WHEN e = 2 THEN arrivals END) AS of (queue), generate_series(0, 4) AS own (band)
                        WHERE queues IS NULL OR of.queue = ANY (queues)
                    ) AS own, LATERAL (
                        SELECT x AS l FROM queue_app_rows_lane AS x
                        WHERE x.behind = '' AND x.queue = own.queue AND x.ordered = own.ordered AND x.band = own.band
                            AND x.head > own.low AND x.head <= own.high AND x.hash <> ALL (skipped)
                            AND queue_app_runs_1(x, types, queues, offers, slots)
                        ORDER BY x.head, x.head_id LIMIT LEAST(free, drawn) + 1
                    ) AS first
                    UNION ALL
                    SELECT first.l FROM unnest(of_types) AS of (task_type),
                    unnest(own_bands, own_lows, own_highs) AS own (band, low, high), LATERAL (
                        SELECT x AS l FROM queue_app_rows_lane AS x
                        WHERE x.behind = '' AND x.task_type = of.task_type AND x.ordered = '' AND x.band = own.band
                            AND x.head > own.low AND x.head <= own.high AND x.queue <> ALL (special) AND x.hash <> ALL (skipped)
                            AND queue_app_runs_1(x, types, queues, offers, slots)
                        ORDER BY x.head, x.head_id LIMIT LEAST(free, drawn) + 1
                    ) AS first
                ) AS found ORDER BY (found.l).head, (found.l).head_id LIMIT LEAST(free, drawn) + 1
            );
            is_drawn := true;
            pool_end := CASE WHEN cardinality(pool) > LEAST(free, drawn) THEN pool[cardinality(pool)].head ELSE 'infinity' END;
        END IF;
        of_turn := 0;
        is_first := cardinality(pool) = 0;
        IF is_first AND pool_end < 'infinity' THEN
            is_drawn := false;
            CONTINUE;
        END IF;
        best := pool[1];
        bound := COALESCE(pool[2].head, pool_end);
        -- In a fair queue, the owner whose turn is next: among few lanes by sorting, among many by the stored turns.
        IF asked <> '{}' THEN
            FOREACH i IN ARRAY asked LOOP turns[i] := NULL; END LOOP;
            FOR r IN
                SELECT f.place, CASE WHEN lanes.number <= few THEN (
                    SELECT x.l FROM unnest(own_bands, own_lows, own_highs) AS own (band, low, high), LATERAL (
                        SELECT x AS l, x.* FROM queue_app_rows_lane AS x
                        WHERE x.behind = '' AND x.queue = f.queue AND x.ordered = f.ordered AND x.band = own.band
                            AND x.head > own.low AND x.head <= own.high
                            AND x.hash <> ALL (skipped) AND queue_app_runs_1(x, types, queues, offers, slots)
                        ORDER BY x.head, x.head_id LIMIT few
                    ) AS x LEFT JOIN queue_app_rows_turn AS o ON o.queue = x.queue AND o.band = e AND o.owner = x.owner
                    ORDER BY GREATEST(o.turn, taken.turn), x.owner, x.head, x.head_id LIMIT 1
                ) ELSE COALESCE((
                    SELECT first.l FROM (VALUES (-1, 0), (0, taken.turn)) AS part (above, upto), LATERAL (
                        SELECT o.owner, x AS l FROM queue_app_rows_turn AS o, queue_app_lane_of_1(
                            f.queue, o.owner, own_bands, own_lows, own_highs, skipped, types, queues, offers, slots) AS x
                        WHERE o.queue = f.queue AND o.band = e AND o.waits AND o.turn > part.above AND o.turn <= part.upto
                        ORDER BY o.turn, o.owner LIMIT 1
                    ) AS first ORDER BY first.owner LIMIT 1
                ), (
                    SELECT x FROM queue_app_rows_turn AS o, queue_app_lane_of_1(
                        f.queue, o.owner, own_bands, own_lows, own_highs, skipped, types, queues, offers, slots) AS x
                    WHERE o.queue = f.queue AND o.band = e AND o.waits AND o.turn > taken.turn
                    ORDER BY o.turn, o.owner LIMIT 1
                )) END AS l
                FROM (
                    SELECT place, fairs[place] AS queue, takers[place] AS ordered FROM unnest(asked) AS a (place)
                ) AS f, LATERAL (
                    SELECT COALESCE(max(o.turn), 0) AS turn FROM queue_app_rows_turn AS o
                    WHERE o.queue = f.queue AND o.band = e AND o.owner = chr(30)
                ) AS taken, LATERAL (
                    SELECT count(*) AS number FROM (
                        SELECT FROM unnest(own_bands, own_lows, own_highs) AS own (band, low, high), LATERAL (
                            SELECT FROM queue_app_rows_lane AS x
                            WHERE x.behind = '' AND x.queue = f.queue AND x.ordered = f.ordered AND x.band = own.band
                                AND x.head > own.low AND x.head <= own.high
                            LIMIT few + 1
                        ) AS first LIMIT few + 1
                    ) AS found
                ) AS lanes
                WHERE lanes.number > 0 AND 'q:' || f.queue <> ALL (shut)
            LOOP
                turns[r.place] := r.l;
            END LOOP;
            FOR r IN  -- what it has reserved comes first, if it is the first of its owner
                SELECT array_position(fairs, x.queue::text) AS place, x AS l
                FROM queue_app_rows_reservation AS o, LATERAL (
                    VALUES (split_part(o.lane, chr(31), 4)), (split_part(o.lane, chr(31), 5))
                ) AS own (owner), queue_app_lane_of_1(split_part(o.lane, chr(31), 1), own.owner, own_bands, own_lows, own_highs,
                    skipped, types, queues, offers, slots) AS x
                WHERE o.holder = worker AND o.until > now_at AND queue_app_drained_1(x) = o.lane
                    AND array_position(fairs, x.queue::text) = ANY (asked) AND 'q:' || x.queue <> ALL (shut)
            LOOP
                turns[r.place] := r.l;
            END LOOP;
            asked := '{}';
        END IF;
        FOR i IN 1..cardinality(fairs) LOOP
            IF turns[i].hash IS NOT NULL THEN
                IF is_first OR (turns[i].head, turns[i].head_id) < (best.head, best.head_id) THEN
                    IF NOT is_first THEN bound := best.head; END IF;
                    best := turns[i]; of_turn := i; is_first := false;
                ELSE
                    bound := LEAST(bound, turns[i].head);
                END IF;
            END IF;
        END LOOP;
        IF is_first THEN
            e := e + 1;
            is_drawn := false;
            asked := all_fairs;
            CONTINUE;
        END IF;
        IF of_turn > 0 THEN
            asked := ARRAY[of_turn];
        ELSE
            pool := pool[2:];
        END IF;

        -- The room behind all gates of the lane.
        gates := ARRAY['q:' || best.queue, 't:' || best.task_type];
        IF best.concurrency_key <> '' THEN
            IF strpos(best.concurrency_key, ':') > 0 THEN
                gates := gates || ('f:' || split_part(best.concurrency_key, ':', 1));
            END IF;
            gates := gates || ('k:' || best.concurrency_key);
        END IF;
        IF best."user" <> '' THEN gates := gates || ('u:' || best.queue || chr(30) || best."user"); END IF;
        room := LEAST((rooms ->> 'a')::int, free); closed_gate := NULL;
        EXIT WHEN room = 0;
        FOREACH g IN ARRAY gates LOOP
            IF NOT rooms ? g THEN
                SELECT * INTO r FROM queue_app_gate_room_1(g, used, t);
                rooms := rooms || jsonb_build_object(g, r.room);
                IF r."interval" IS NOT NULL OR r.delay IS NOT NULL THEN passed := passed || jsonb_build_object(g, 0); END IF;
            END IF;
            n := (rooms ->> g)::int;
            IF n <= 0 THEN closed_gate := g; EXIT; END IF;
            room := LEAST(room, n);
        END LOOP;

        IF closed_gate IS NOT NULL THEN
            -- A fair queue without room is left out; else the lane stands behind the gate, with all others that must pass it.
            SELECT * INTO r FROM queue_app_gate_room_1(closed_gate, used, t);
            IF of_turn > 0 AND closed_gate LIKE 'q:%' THEN
                shut := shut || closed_gate;
                opens_at := LEAST(opens_at, r.opens);
                CONTINUE;
            END IF;
            -- What this claim has started counts: a cap that it fills opens when slots are free, a rate by time.
            INSERT INTO queue_app_rows_gate AS k (gate, since, closed, cap, opens)
            VALUES (closed_gate, t, true, CASE WHEN NOT r.paused THEN r.cap END,
                CASE WHEN r.room > 0 AND passed ? closed_gate THEN 0 ELSE r.opens END)
            ON CONFLICT (gate) DO UPDATE SET closed = true, cap = EXCLUDED.cap, opens = EXCLUDED.opens;
            UPDATE queue_app_rows_lane AS l SET behind = closed_gate, ordered = ''
            WHERE closed_gate LIKE 'q:%' AND l.queue = best.queue AND l.behind = '';
            UPDATE queue_app_rows_lane AS l SET behind = closed_gate, ordered = ''
            WHERE closed_gate LIKE 't:%' AND l.task_type = best.task_type AND l.behind = '';
            UPDATE queue_app_rows_lane AS l SET behind = closed_gate, ordered = ''
            WHERE closed_gate LIKE 'f:%' AND starts_with(l.concurrency_key, substr(closed_gate, 3) || ':') AND l.behind = '';
            UPDATE queue_app_rows_lane AS l SET behind = closed_gate, ordered = ''
            WHERE closed_gate ~ '^[ku]:' AND l.hash = best.hash AND l.band = best.band AND l.queue = best.queue
                AND l.task_type = best.task_type AND l."user" = best."user" AND l.concurrency_key = best.concurrency_key;
            is_drawn := is_drawn AND closed_gate ~ '^[ku]:' AND opened = '{}';
            IF closed_gate LIKE 't:%' THEN
                shut := shut || closed_gate;
                asked := all_fairs;
            END IF;
            FOREACH g IN ARRAY opened LOOP  -- others take the places of the lanes that came back
                CONTINUE WHEN g = closed_gate OR (rooms ->> g)::int <= 0;
                PERFORM queue_app_open_lanes_1(
                    g, CASE WHEN closed_gate ~ '^[ku]:' THEN 1 ELSE free END, arrivals, fairs, shut, types, queues, offers, slots);
            END LOOP;
            left_moves := left_moves - 1;
            IF left_moves = 0 THEN delay := 0; EXIT; END IF;
            CONTINUE;
        END IF;

        IF best.weight > free THEN
            IF NOT may_reserve OR EXISTS (SELECT FROM queue_app_rows_reservation AS o
                WHERE o.lane = queue_app_drained_1(best) AND o.holder <> worker AND o.until > now_at) THEN
                skipped := skipped || best.hash;
                CONTINUE;
            END IF;
            -- It drains for this lane, and takes nothing behind it.
            DELETE FROM queue_app_rows_reservation AS o WHERE o.until <= now_at;
            INSERT INTO queue_app_rows_reservation AS o (holder, lane, until)
            VALUES (worker, queue_app_drained_1(best), now_at + interval '30 s')
            ON CONFLICT (holder) DO UPDATE SET lane = EXCLUDED.lane, until = EXCLUDED.until;
            EXIT;
        END IF;
        room := LEAST(room, free / best.weight, CASE WHEN of_turn > 0 THEN 1 END);
        high := CASE WHEN best.queue = ANY (arrivals) THEN 'infinity' ELSE highs[5 * e + best.band + 1] END;
        ids := '{}'; next_at := NULL; next_id := NULL;
        FOR r IN
            SELECT id, queued_at FROM queue_app_task
            WHERE hashtextextended(queue || chr(31) || task_type || chr(31) || "user" || chr(31) || concurrency_key || chr(31) || weight::text,
                    hash_array_extended(capabilities, 0)) = best.hash
                AND priority = best.band AND status = 'queued' AND (queued_at, id) >= (best.head, best.head_id)
                AND queue = best.queue AND task_type = best.task_type AND "user" = best."user"
                AND concurrency_key = best.concurrency_key AND weight = best.weight AND capabilities = best.capabilities
            ORDER BY queued_at, id LIMIT room + 1
        LOOP
            IF cardinality(ids) = room OR r.queued_at > high OR (r.queued_at > bound)
                OR (of_turn > 0 AND r.queued_at > best.head + interval '50 microseconds') THEN
                next_at := r.queued_at; next_id := r.id;
                EXIT;
            END IF;
            ids := ids || r.id;
        END LOOP;
        locked := ARRAY(SELECT id FROM queue_app_task WHERE id = ANY (ids) AND status || '' = 'queued' FOR UPDATE SKIP LOCKED);
        IF cardinality(locked) < cardinality(ids) THEN  -- another transaction keeps rows: the lane waits for the next claim
            skipped := skipped || best.hash;
            next_at := best.head; next_id := best.head_id;
            ids := ARRAY(SELECT id FROM unnest(ids) WITH ORDINALITY AS o (id, place) WHERE id = ANY (locked) ORDER BY place);
        END IF;
        n := cardinality(ids);
        IF next_at IS NULL THEN
            DELETE FROM queue_app_rows_lane AS l
            WHERE l.hash = best.hash AND l.band = best.band AND l.queue = best.queue AND l.task_type = best.task_type
                AND l."user" = best."user" AND l.concurrency_key = best.concurrency_key AND l.weight = best.weight
                AND l.capabilities = best.capabilities;
        ELSE
            UPDATE queue_app_rows_lane AS l SET head = next_at, head_id = next_id
            WHERE l.hash = best.hash AND l.band = best.band AND l.queue = best.queue AND l.task_type = best.task_type
                AND l."user" = best."user" AND l.concurrency_key = best.concurrency_key AND l.weight = best.weight
                AND l.capabilities = best.capabilities;
            IF of_turn = 0 AND next_at <= LEAST(high, pool_end) AND best.hash <> ALL (skipped) THEN  -- back to its place
                best.head := next_at; best.head_id := next_id;
                i := 1;
                WHILE i <= cardinality(pool) AND (pool[i].head, pool[i].head_id) < (next_at, next_id) LOOP i := i + 1; END LOOP;
                pool := array_append(pool[:i - 1], best) || pool[i:];
            END IF;
        END IF;
        IF n = 0 THEN
            left_moves := left_moves - 1;
            IF left_moves = 0 THEN delay := 0; EXIT; END IF;
            CONTINUE;
        END IF;
        IF best.weight > 1 THEN
            DELETE FROM queue_app_rows_reservation AS o WHERE o.holder = worker AND o.lane = queue_app_drained_1(best);
        END IF;
        picked := picked || ids;
        free := free - n * best.weight;
        is_paced := false;
        FOREACH g IN ARRAY gates || ARRAY['a'] LOOP
            IF rooms ->> g IS NOT NULL THEN rooms := rooms || jsonb_build_object(g, (rooms ->> g)::int - n); END IF;
            IF passed ? g THEN passed := passed || jsonb_build_object(g, (passed ->> g)::int + n); is_paced := true; END IF;
        END LOOP;
        IF is_paced THEN paced := paced || ids; END IF;
        IF of_turn > 0 THEN  -- the next turn of its owner begins one share later
            SELECT COALESCE(max(turn), 0) INTO last FROM queue_app_rows_turn AS o
            WHERE o.queue = best.queue AND o.band = e AND o.owner = chr(30);
            SELECT GREATEST(max(turn), last) INTO start FROM queue_app_rows_turn AS o
            WHERE o.queue = best.queue AND o.band = e AND o.owner = best.owner;
            -- Owners before it have nothing here; those whose lanes have all gone do not wait.
            FOREACH past IN ARRAY ARRAY[0, last] LOOP
                UPDATE queue_app_rows_turn AS o SET waits = false
                WHERE o.queue = best.queue AND o.band = e AND o.waits
                    AND o.turn >= past AND (o.turn, o.owner) < (past, best.owner)
                    AND NOT EXISTS (SELECT FROM queue_app_rows_lane AS x WHERE x.queue = o.queue AND x.owner = o.owner);
            END LOOP;
            INSERT INTO queue_app_rows_turn AS o (queue, band, owner, turn, waits)
            SELECT best.queue, e, best.owner, start + 1000 / COALESCE((q.fair_weights ->> best.owner)::float8, 1), true
            FROM queue_app_queue AS q WHERE q.name = best.queue
            UNION ALL SELECT best.queue, e, chr(30), start, false
            ON CONFLICT (queue, band, owner) DO UPDATE SET turn = EXCLUDED.turn, waits = EXCLUDED.waits;
            DELETE FROM queue_app_rows_turn AS o WHERE o.queue = best.queue AND o.band = e AND NOT o.waits AND o.turn < start;
            UPDATE queue_app_rows_turn AS o SET turn = 0, waits = EXISTS (
                SELECT FROM queue_app_rows_lane AS x
                WHERE x.queue = o.queue AND x.owner = o.owner)
            WHERE o.queue = best.queue AND o.band = e AND o.waits AND o.turn > 0 AND o.turn < start;
        END IF;
    END LOOP;

    FOR g, n IN SELECT key, value::int FROM jsonb_each_text(passed) WHERE value <> '0' LOOP
        PERFORM queue_app_record_starts_1(g, n, t);
    END LOOP;
    IF cardinality(picked) > 0 THEN UPDATE queue_app_rows_state SET stamp = new_stamp WHERE id = 1; END IF;
    -- A gate that this claim closed by its own starts opens by the starts recorded above.
    FOR g IN SELECT gate FROM queue_app_rows_gate AS k WHERE k.closed AND k.opens = 0 LOOP
        SELECT * INTO r FROM queue_app_gate_room_1(g, used, t);
        UPDATE queue_app_rows_gate AS k SET opens = r.opens, cap = CASE WHEN NOT r.paused THEN r.cap END
        WHERE k.gate = g AND r.room = 0;
    END LOOP;
    IF delay IS NULL AND free > 0 THEN
        SELECT LEAST(min(k.opens), opens_at) INTO opens_at FROM queue_app_rows_gate AS k WHERE k.closed AND k.opens > t;
        IF opens_at IS NOT NULL THEN  -- one worker waits for it
            UPDATE queue_app_rows_state AS s SET watcher = worker, watched = opens_at
            WHERE s.id = 1 AND (s.watcher IS NULL OR s.watcher = worker OR s.watched < t OR s.watched > opens_at + 1000);
            IF FOUND THEN delay := GREATEST(0, opens_at - t) / 1e6; END IF;
        END IF;
    END IF;
    RETURN set_config('taskqueue.pick', json_build_object('state', 'ready', 'generation', index_state.number, 'stamp', new_stamp,
        'ids', picked, 'paced', paced, 'wait', delay)::text, true);
END $$;
