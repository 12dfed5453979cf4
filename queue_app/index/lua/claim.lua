-- Proposes up to `want` tasks to a worker and leases them.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV[1]  profile of the worker        ARGV[2]  worker id
-- ARGV[3]  want (1..500)                ARGV[4]  '1': register as idle when fewer are found
-- Returns  {'rebuilding'} no generation, or one of another server run
--          {'unknown_profile'}
--          {'ready', generation, leased_at_us, id, queue, id, queue, ...} in order of the scores
--
-- Takes the lowest head over the queues and lanes of the profile, so order is strict over
-- lanes. Checks every limit before the first lease; reads O(want * log n).
--! include keys
--! include limits
--! include heads
--! include merge
--! include wake
local profile, worker, want, register_idle = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
local generation = redis.call('HMGET', GENERATION, 'number', 'run_id', 'state')
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
if generation[3] ~= 'ready' or generation[2] ~= run_id then return { 'rebuilding' } end
if redis.call('SISMEMBER', PROFILES, profile) == 0 then return { 'unknown_profile' } end

-- Decide. What must not be proposed is taken out of the way, and the decision made anew.
local limit = math.min(want, global_room())
local picks, stale, blocked
repeat
  picks, stale, blocked = merge(profile, limit)
  for _, q in ipairs(blocked) do redis.call('ZREM', heads_key(profile), q) end
  for lane, ids in pairs(stale) do
    for i = 1, #ids, 1000 do redis.call('ZREM', lane_key(lane), unpack(ids, i, math.min(i + 999, #ids))) end
    refresh_lane(lane)
  end
  refresh_touched()
until #blocked == 0 and not next(stale)

-- Everything is decided; now write.
local stamp = string.format('%.0f', now_us())
local reply, leases, drained = { 'ready', generation[1], stamp }, {}, {}
redis.call('ZREM', idle_key(profile), worker)
redis.call('DEL', wake_key(worker))
for _, pick in ipairs(picks) do
  local id, q, lane = pick[1], pick[2], pick[3]
  reply[#reply + 1] = id
  reply[#reply + 1] = q
  leases[q] = leases[q] or { {}, {} }
  table.insert(leases[q][1], id)
  table.insert(leases[q][2], stamp)
  table.insert(leases[q][2], id)
  drained[lane] = drained[lane] or {}
  table.insert(drained[lane], id)
end
for q, lists in pairs(leases) do
  redis.call('SADD', LEASES, unpack(lists[1]))
  redis.call('ZADD', queue_leases_key(q), unpack(lists[2]))
end
for lane, ids in pairs(drained) do
  redis.call('ZREM', lane_key(lane), unpack(ids))
  refresh_lane(lane)
end
refresh_touched()

if #picks < want and register_idle then redis.call('ZADD', idle_key(profile), stamp, worker) end
wake_any()  -- the baton: call the next for whom there is work, be it its own or that of others
return reply
