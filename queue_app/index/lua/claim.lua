-- Proposes tasks to a worker and leases them.
--
-- KEYS[1]  prefix of all keys (their hash tag)
-- ARGV[1]  profile of the worker        ARGV[2]  worker id
-- ARGV[3]  wanted slots (1..500)        ARGV[4]  '1': register as idle when fewer are found
-- ARGV[5]  '1': the worker may reserve a lane; '0': more slots than wanted will never be free
-- ARGV[6..] id, leased_at_us, ...: leases that the transaction which grants the new tasks ends first (lib/exchange.lua)
-- Returns  {'rebuilding'} when there is no generation, or it is of another server run
--          {'unknown_profile'}
--          {'ready', or 'loading' while a rebuild loads tasks that this claim may have missed,
--          generation, leased_at_us, wait, paced, id, queue, id, queue, ...} in the order of the scores; wait: ms
--          until a limit lets a task start again, for one of the workers that found too few tasks; 0 when the claim stopped
--          early; '' for the others; paced: the ids of the tasks that passed a rate or a delay
--
-- Takes the lowest head over the queues and lanes of the profile, so the order is strict over lanes: the claim stops at
-- the first task that needs more slots than are left, and reserves its lane. It passes by a lane of such tasks that another
-- worker has reserved. Checks every limit before the first lease. Reads O(want * log n), and what it moves: a task that a limit
-- holds back moves once to the lane of that limit. After some moves the claim stops, and proposes nothing behind.
--! include merge
--! include picks
--! include exchange
--! include refills
local profile, worker, want, register_idle = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
profile_of_claim, worker_of_claim, may_reserve = profile, worker, ARGV[5] == '1'
local generation = redis.call('HMGET', GENERATION, 'number', 'run_id', 'state', 'stamp', 'short')
local state = true_state(generation[3])
if state ~= 'ready' and state ~= 'loading' or generation[2] ~= server_run() then
  return { 'rebuilding' }
end
if redis.call('SISMEMBER', PROFILES, profile) == 0 then return { 'unknown_profile' } end

has_heavy = generation[5]
local next_refill = apply_refills()
local most, is_sharing = want, false
if ARGV[6] then most, is_sharing = offer_slots(profile, worker, 6) end
merge(math.min(want, most, global_room()), want)  -- decides: fills `picks`, `found` and `rooms`

-- Writes. Each claim has a stamp of its own, even when the clock goes back.
local stamp = whole(math.max(now_us(), within(generation[4], now_us() + FAR_US) + 1))
local reply, changed, passed = { state, generation[1], stamp, '', {} }, {}, {}
redis.call('ZREM', idle_key(profile), worker)
redis.call('DEL', wake_key(worker))
move_members(changed)
redis.call('HSET', GENERATION, 'stamp', stamp)
if #picks > 0 then redis.call('HSET', GENERATION, 'w:' .. worker, stamp) end
local members_of_lanes = write_picks(stamp, reply, changed, passed)
for g, ids in pairs(passed) do
  redis.call('SADD', held_key(g), unpack(ids))
  record_starts(g, gate_policy(g), #ids)
end
for q, bands in pairs(found.taken) do
  for _, p in ipairs(profiles()) do touch(p, q, '') end  -- the next turn of others may be another one now
  for band, taken in pairs(bands) do
    set_turns(q, band, taken)
    -- Turns must stay below the width of a band; a rebuild counts them from zero again.
    if taken[NOW] > 9e12 then redis.call('HSET', GENERATION, 'state', 'rebuilding', 'reshaped', '1') end
  end
end
for _, move in ipairs(found.moved) do
  move_to_group(profile, split_lane(move[1]), move[1], move[2], move[3])
  changed[move[1]] = true
end
for _, late in ipairs(found.late) do
  refresh_turn(profile, late[1], late[2], late[3])
  touch(profile, late[1], late[2])
end
if ARGV[6] then withdraw_slots(profile, worker, 6, stamp) end
for lane, is_taken_from in pairs(changed) do
  local is_raised = is_taken_from == 'taken' and not queue_policy((split_lane(lane))).fair
  if is_raised and redis.call('EXISTS', lane_key(lane)) == 1 then raise_lane(profile, lane) else refresh_lane(lane) end
end
for g in pairs(passed) do
  if rooms[g] <= 0 then refresh_gate(g) end
end
for _, g in ipairs(found.closed) do refresh_gate(g) end
for _, q in ipairs(found.outdated) do refresh_queue(profile, q) end
refresh_touched()

local is_idle, is_fruitful = register_idle and free_slots > 0 and not is_sharing, #picks > 0
if has_heavy then redis.call('ZREM', short_key(profile), worker) end
if found.short then
  is_fruitful = is_fruitful or reservations()[found.short] ~= worker
  reserve(found.short, worker)
elseif has_heavy then
  for lane in pairs(members_of_lanes) do
    if select(6, split_lane(lane)) > 1 and reservations()[lane] == worker then end_reservations(worker) end
  end
end
if (found.short or found.passed) and not has_heavy then redis.call('HSET', GENERATION, 'short', '1') end
if found.unfinished and free_slots > 0 then
  reply[4] = '0'
  if is_idle then wake_worker(worker) end
elseif is_idle and (found.short or found.passed) then
  redis.call('ZADD', short_key(profile), free_slots, worker)
elseif is_idle then
  redis.call('ZADD', idle_key(profile), stamp, worker)
end
spare_drainers = not is_fruitful
if (next_refill or has_refill) and reply[4] == '' then reply[4] = watch_refills(profile, worker, is_idle) end
wake_any()  -- wakes the next worker: any profile may still have work
return reply
