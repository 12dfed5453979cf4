-- Keys, built in one place (mirrored by queue_app/index/keys.py). All lie under one hash
-- tag, so that a script stays on one node of a cluster. `P` is that tag.
local P = KEYS[1]
local GENERATION = P .. ':generation'  -- hash: number, run_id, state
local SETTINGS = P .. ':settings'      -- hash: max_concurrent, promote_2, promote_3, promote_4 (s)
local COUNTERS = P .. ':counters'      -- hash: what happened since Redis was emptied -> how often
local EVENTS = P .. ':events'              -- stream: what happened to tasks, capped
local REQUESTS = P .. ':requests'          -- stream: tasks that other services ask for
local POISON = P .. ':requests:poison'     -- stream: requests that were set aside, capped
local QUEUES = P .. ':queues'          -- set: queues that have, or had, a lane
local LEASES = P .. ':leases'          -- set: every leased id
local PROFILES = P .. ':profiles'      -- set: profiles of registered workers
local function queue_key(q) return P .. ':queue:' .. q end              -- hash: paused, max_concurrent
local function lanes_key(q) return P .. ':lanes:' .. q end              -- set: its lanes that hold tasks
local function lane_key(l) return P .. ':lane:' .. l end                -- zset: id -> band * 10^13 + ms
local function queue_leases_key(q) return P .. ':leases:' .. q end      -- zset: id -> leased at (us)
local function profile_key(p, part) return P .. ':profile:' .. p .. ':' .. part end
local function heads_key(p) return P .. ':heads:' .. p end              -- zset: queue -> score of its head
local function queue_heads_key(p, q) return P .. ':heads:' .. p .. ':' .. q end  -- zset: lane -> same
local function idle_key(p) return P .. ':idle:' .. p end                -- zset: worker -> idle since (us)
local function wake_key(w) return P .. ':wake:' .. w end                -- list: tokens, read by BLPOP
local function now_us()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end
