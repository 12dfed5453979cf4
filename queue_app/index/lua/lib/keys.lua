-- The names of all keys; queue_app/index/keys.py repeats the ones that Python uses. All keys lie under one hash tag, `P`,
-- the prefix that every script gets as its only key, KEYS[1], so that a script stays on one node of a cluster. Times are in
-- microseconds (us) unless a comment says otherwise.
local P = KEYS[1]
local GENERATION = P .. ':generation'    -- hash: number, run_id, state, reshaped, wiping, database (identity of the
                                         -- database that owns the index), stamp (time of the last claim or check, us),
                                         -- behind (step of the server's clock, us), w:WORKER (stamp of its last claim)
local SETTINGS = P .. ':settings'        -- hash: max_concurrent, paused, promote_2, promote_3, promote_4 (s), rows_ahead
                                         -- (how far PostgreSQL's clock is ahead, us), gated (set once a type, a key or
                                         -- the users of a queue have had limits)
local COUNTERS = P .. ':counters'        -- hash: event -> count since Redis was emptied
local EVENTS = P .. ':events'            -- stream: lifecycle events, capped
local REQUESTS = P .. ':requests'        -- stream: tasks that other services request
local POISON = P .. ':requests:poison'   -- stream: quarantined requests, capped
local QUEUES = P .. ':queues'            -- set: queues that have, or had, a lane
local LIMITED = P .. ':limited'          -- set: queues that have limits
local LIMITS = P .. ':limits'            -- set: gates of types and keys that have limits; u:QUEUE for its users
local LEASES = P .. ':leases'            -- hash: leased id -> its address
local PROFILES = P .. ':profiles'        -- set: profiles of registered workers
local REFILLS = P .. ':refills'          -- zset: gate that waits for time only -> when it opens (us)
local RESERVATIONS = P .. ':reservations'  -- hash: lane of a heavy task -> when it lapses (us) and the worker that drains
local EXCHANGES = P .. ':exchanges'      -- hash: worker -> old and new leases of its last turn-over
local LOADING = P .. ':loading'          -- hash: queue\31band -> score up to which a rebuild has loaded its tasks
local GATES = P .. ':gates'              -- set: gates behind which lanes are grouped
local function queue_key(q) return P .. ':queue:' .. q end              -- hash: limits and order
local function limit_key(g) return P .. ':limit:' .. g end              -- hash: limits of a type, a key or a family
local function weights_key(q) return P .. ':weights:' .. q end          -- hash: user or key of a fair queue -> share
local function bucket_key(since, g) return P .. ':bucket:' .. since .. ':' .. g end  -- hash: used part of a rate
local function lanes_key(q) return P .. ':lanes:' .. q end              -- set: lanes of a queue that hold tasks
local function types_key(q) return P .. ':types:' .. q end              -- hash: task type -> its lanes in the queue
local function lane_key(l) return P .. ':lane:' .. l end                -- zset: id, user and key -> band * 10^13 + ms
local function queue_leases_key(q) return P .. ':leases:' .. q end      -- zset: leased id -> leased at (us)
local function held_key(g) return P .. ':held:' .. g end                -- set: leased ids that passed a gate
local function profile_key(p, part) return P .. ':profile:' .. p .. ':' .. part end
local function heads_key(p) return P .. ':heads:' .. p end              -- zset: queue -> score of its first task
local function queue_heads_key(p, q) return P .. ':heads:' .. p .. ':' .. q end  -- zset: lane or group -> same
local function group_key(p, q, g) return P .. ':group:' .. p .. ':' .. q .. '\31' .. g end  -- zset: lane -> same
local function at_key(p) return P .. ':at:' .. p end                    -- hash: lane -> gate it is grouped behind
local function spots_key(g) return P .. ':spots:' .. g end              -- set: profile\31queue that have such a group
local function turns_key(q, band) return P .. ':turns:' .. q .. ':' .. band end  -- zset: user or key -> its next turn
local function turn_key(p, q, g, who) return P .. ':turn:' .. p .. ':' .. q .. '\31' .. g .. '\31' .. who end  -- zset: its lanes
local function nodes_key(p, q) return P .. ':nodes:' .. p .. ':' .. q end  -- hash: gate -> its entry in a fair queue
local function idle_key(p) return P .. ':idle:' .. p end                -- zset: worker -> idle since (us)
local function short_key(p) return P .. ':short:' .. p end              -- zset: worker that lacks slots -> free slots
local function watch_key(p) return P .. ':watch:' .. p end              -- string: worker that waits for a refill
local function wake_key(w) return P .. ':wake:' .. w end                -- list: wake-up tokens, read by BLPOP

local function exact(number) return string.format('%.17g', number) end
local function whole(number) return string.format('%.0f', number) end

-- The index's own clock (us). It never goes back: if the server's clock steps back by more than a second, the index adds the
-- step (`behind`) from then on. So whatever the scripts stored by this clock still ends in time.
local STEP_US = 1000000
local FAR_US = 3e14  -- ten years: what is further ahead was not stored by a script
local function within(text, most)
  local n = tonumber(text or nil)
  return n and n >= 0 and n <= most and n or 0
end
local instant  -- read once per call
local function now_us()
  if not instant then
    local t, known = redis.call('TIME'), redis.call('HMGET', GENERATION, 'stamp', 'behind')
    local behind = within(known[2], FAR_US)
    instant = t[1] * 1000000 + t[2] + behind
    local stamp = within(known[1], instant + FAR_US)
    if stamp - instant > STEP_US then
      -- pcall: a server without memory refuses writes, and a release must continue
      redis.pcall('HSET', GENERATION, 'behind', whole(behind + stamp - instant))
      instant = stamp
    end
  end
  return instant
end

-- How far PostgreSQL's clock is ahead of `now_us` (us), as the reconciler last saw it (set_clock.lua). Scripts that compare
-- an instant of a row with the present time add it.
local ahead
local function rows_ahead()
  ahead = ahead or tonumber(redis.call('HGET', SETTINGS, 'rows_ahead') or nil) or 0
  return ahead
end

-- The id of this run of the server; it changes with every restart, which may lose data.
local function server_run() return string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') end

-- The state of a generation. A rebuild that loads tasks while claims are allowed holds a lock; if its process has died, claims
-- wait for the next rebuild.
local function true_state(stored)
  if stored == 'loading' and redis.call('EXISTS', P .. ':lock:rebuild') == 0 then return 'rebuilding' end
  return stored
end

local function first_of(key)
  local found = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  return found[1], found[2]
end

-- Whether a text is the identity of a database, as queue_app/sql/doctor.py makes it; damage must not bind the index.
local function is_identity(text) return string.match(text, '^%x[%x-]+/.+/') ~= nil end

-- Adds to a counter of the cluster. A counter that is no number begins again; other errors (no memory) do not matter.
local function add_to(name, n)
  local done = redis.pcall('HINCRBY', COUNTERS, name, n)
  if type(done) == 'table' and string.find(done.err, 'not an integer', 1, true) then
    redis.pcall('HSET', COUNTERS, name, n)
  end
end
