-- Proposes tasks to a worker and leases them.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV[1]  profile of the worker        ARGV[2]  worker id
-- ARGV[3]  want, in slots (1..500)      ARGV[4]  '1': register as idle when fewer are found
-- Returns  {'rebuilding'} no generation, or one of another server run
--          {'unknown_profile'}
--          {'ready', generation, leased_at_us, wait, id, queue, id, queue, ...} in order of the scores;
--          wait: ms until a limit lets something start again, for one of those who found too little; else ''
--
-- Takes the lowest head over the queues and lanes of the profile, so order is strict over
-- lanes: it stops at the first task that needs more slots than are left. Checks every limit
-- before the first lease; reads O(want * log n).
--! include keys
--! include limits
--! include heads
--! include merge
--! include wake
local profile, worker, want, register_idle = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
local generation = redis.call('HMGET', GENERATION, 'number', 'run_id', 'state', 'stamp', 'short')
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
if generation[3] ~= 'ready' or generation[2] ~= run_id then return { 'rebuilding' } end
if redis.call('SISMEMBER', PROFILES, profile) == 0 then return { 'unknown_profile' } end

-- What time has opened comes back first.
local refill = open_refills()

-- Decide.
local picks, found = merge(profile, math.min(want, global_room()), want)

-- Everything is decided; now write. No two claims have the same instant, whatever the clock does.
local stamp = string.format('%.0f', math.max(now_us(), (tonumber(generation[4] or nil) or 0) + 1))
local reply, leases, changed, passed = { 'ready', generation[1], stamp, '' }, {}, {}, {}
redis.call('ZREM', idle_key(profile), worker)
redis.call('DEL', wake_key(worker))
for lane, ids in pairs(found.stale) do
  for i = 1, #ids, 1000 do redis.call('ZREM', lane_key(lane), unpack(ids, i, math.min(i + 999, #ids))) end
  changed[lane] = true
end
local drained, held = {}, {}
for _, pick in ipairs(picks) do
  local id, q, lane = pick[1], pick[2], pick[3]
  reply[#reply + 1] = id
  reply[#reply + 1] = q
  leases[q] = leases[q] or {}
  table.insert(leases[q], stamp)
  table.insert(leases[q], id)
  drained[lane] = drained[lane] or {}
  table.insert(drained[lane], id)
end
if #picks > 0 then
  redis.call('HSET', GENERATION, 'stamp', stamp, 'w:' .. worker, stamp)
end
for q, pairs_to_add in pairs(leases) do
  redis.call('ZADD', queue_leases_key(q), unpack(pairs_to_add))
  spend('q:' .. q, queue_policy(q), #pairs_to_add / 2)
end
for lane, ids in pairs(drained) do
  redis.call('ZREM', lane_key(lane), unpack(ids))
  for _, id in ipairs(ids) do
    held[#held + 1] = id
    held[#held + 1] = lane
    for _, g in ipairs(gates_of(lane)) do
      passed[g] = passed[g] or {}
      table.insert(passed[g], id)
    end
  end
  changed[lane] = true
end
if #picks > 0 then hold_leases(held) end
for g, ids in pairs(passed) do
  redis.call('SADD', held_key(g), unpack(ids))
  spend(g, gate_policy(g), #ids)
end
for q, bands in pairs(found.taken) do
  for band, taken in pairs(bands) do
    set_turns(q, band, taken)
    -- Turns end where the next band begins: an index that is built anew counts them from the beginning.
    if taken[NOW] > 9e12 then redis.call('HSET', GENERATION, 'state', 'rebuilding') end
  end
end
for _, move in ipairs(found.moved) do
  group(profile, split_lane(move[1]), move[1], move[2], move[3])
  changed[move[1]] = true
end
for _, late in ipairs(found.late) do
  refresh_turn(profile, late[1], late[2], late[3])
  touch(profile, late[1], late[2])
end
for lane in pairs(changed) do refresh_lane(lane) end
for g in pairs(passed) do
  if found.rooms[g] <= 0 then refresh_gate(g) end
end
for _, g in ipairs(found.closed) do refresh_gate(g) end
for _, q in ipairs(found.shut) do refresh_queue(profile, q) end
refresh_touched()

local is_idle = register_idle and found.left > 0
if generation[5] then redis.call('ZREM', short_key(profile), worker) end
if is_idle and found.short then
  redis.call('ZADD', short_key(profile), found.left, worker)
  if not generation[5] then redis.call('HSET', GENERATION, 'short', '1') end
elseif is_idle then
  redis.call('ZADD', idle_key(profile), stamp, worker)
end
if refill or awaits then reply[4] = watch(profile, worker, is_idle) end
wake_any()  -- the baton: call the next for whom there is work, be it its own or that of others
return reply
