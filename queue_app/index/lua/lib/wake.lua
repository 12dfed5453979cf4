--! include lane_heads
--! include reservations
-- Wake-up calls. Exactly one idle worker is woken for new work; its claim wakes the next one while an idle worker has work.
local function wake_worker(worker)
  redis.call('RPUSH', wake_key(worker), '1')
  redis.call('PEXPIRE', wake_key(worker), 60000)
  return true
end

-- Returns the score at which a claim of this worker stops: that of the first task of the lane for which it drains. Returns
-- math.huge when no claim stops there now.
local function stops_at(lane, free)
  local q, _, _, _, _, weight = split_lane(lane)
  local id, score = first_of(lane_key(lane))
  if not id or weight <= free or queue_room(q) <= 0 then return math.huge end
  for _, g in ipairs(gates_of(lane)) do
    if gate_room(g) <= 0 then return math.huge end
  end
  return tonumber(score)
end

-- Returns the weight of a task that a worker with `free` slots can take from a list before `bound`, or the weight of a lane that
-- it would reserve; nil when there is neither. Looks at 100 entries of a list.
local function weight_in(p, q, g, key, free, bound)
  local entries = redis.call('ZRANGE', key, 0, 99, 'WITHSCORES')
  for i = 1, #entries, 2 do
    local entry, is_open = entries[i], true
    local who, group = split_entry(entry)
    if who then
      local weight
      if group ~= '' then
        if gate_room(group) > 0 then weight = weight_in(p, q, group, list_key(p, q, group), free, bound) end
      else
        weight = weight_in(p, q, g, turn_key(p, q, g, who), free, bound)
      end
      if weight then return weight end
    else
      if tonumber(entries[i + 1]) >= bound then return nil end
      local weight = select(6, split_lane(entry))
      for _, gate in ipairs(gates_of(entry)) do
        if gate_room(gate) <= 0 then is_open = false end
      end
      if is_open and (weight <= free or not reservations()[entry]) then return weight end
    end
  end
  return nil
end

-- The same over all queues of a profile. In a fair queue, the lane for which a worker drains comes first in its band.
local function next_weight(p, free, bound, reserved)
  for _, q in ipairs(redis.call('ZRANGE', heads_key(p), 0, 99)) do
    if queue_room(q) > 0 then
      local before = bound
      if bound < math.huge and queue_policy(q).fair and split_lane(reserved) == q then
        before = bound - bound % 1e13
      end
      local weight = weight_in(p, q, '', queue_heads_key(p, q), free, before)
      if weight then return weight end
    end
  end
  return nil
end

-- Wakes a worker that lacked free slots and has enough for a task now: the one with the fewest that suffice. A worker that
-- drains comes last, and only for a task before the one for which it drains.
local spare_drainers = false  -- whether to wake none that drains: claims that find nothing must not wake each other for ever
local function wake_short(p)
  local workers, reserved, others = redis.call('ZRANGE', short_key(p), 0, -1, 'WITHSCORES'), {}, {}
  for lane, worker in pairs(reservations()) do reserved[worker] = lane end
  local chosen
  for i = 1, #workers, 2 do
    local worker, free = workers[i], tonumber(workers[i + 1])
    if not reserved[worker] or stops_at(reserved[worker], free) == math.huge then
      others[#others + 1] = { worker, free }
      reserved[worker] = nil
    end
  end
  if #others > 0 then
    local most = others[#others]
    local weight = next_weight(p, most[2], math.huge)
    for i = #others, 1, -1 do
      if weight and (i == #others or others[i][2] >= weight) then chosen = others[i][1] end
    end
  end
  for i = 1, #workers, 2 do
    local worker, free = workers[i], tonumber(workers[i + 1])
    local lane = not chosen and not spare_drainers and reserved[worker]
    if lane and next_weight(p, free, stops_at(lane, free), lane) then chosen = worker end
  end
  if not chosen then return false end
  redis.call('ZREM', short_key(p), chosen)
  return wake_worker(chosen)
end

-- Wakes an idle worker of a profile, else one that lacked free slots.
local function wake_one(p)
  local idle = redis.call('ZPOPMIN', idle_key(p))
  if idle[1] then return wake_worker(idle[1]) end
  return redis.call('EXISTS', short_key(p)) == 1 and wake_short(p)
end

-- Wakes one worker that can run the lane, if the lane may run now.
local function wake_for_lane(lane)
  if queue_room((split_lane(lane))) <= 0 or global_room() <= 0 then return false end
  for _, g in ipairs(gates_of(lane)) do
    if gate_room(g) <= 0 then return false end
  end
  for _, p in ipairs(profiles_for(lane)) do
    if wake_one(p) then return true end
  end
  return false
end

-- Whether a profile has work that may start now. Removes full queues from its heads: profiles that do not run the lanes
-- which filled a queue still list it.
local function has_work(p)
  while true do
    local q = first_of(heads_key(p))
    if not q then return false end
    if queue_room(q) > 0 then return true end
    refresh_queue(p, q)
  end
end

local function wake_if_work(p)
  return redis.call('EXISTS', idle_key(p), short_key(p)) > 0 and has_work(p) and wake_one(p)
end

-- Wakes one worker of any profile that has work.
local function wake_any()
  if global_room() <= 0 then return false end
  for _, p in ipairs(profiles()) do
    if wake_if_work(p) then return true end
  end
  return false
end

-- Returns gates to the heads that waited for time only and are due; returns when the next one is due (us), if any.
local function apply_refills()
  local at = select(2, first_of(REFILLS))
  while at and tonumber(at) <= now_us() do
    local due = redis.call('ZRANGEBYSCORE', REFILLS, '-inf', whole(now_us()), 'LIMIT', 0, 100)
    redis.call('ZREM', REFILLS, unpack(due))
    for _, g in ipairs(due) do
      if string.sub(g, 1, 1) == 'q' then refresh_queue_everywhere(string.sub(g, 3)) else refresh_gate(g) end
    end
    refresh_touched()
    at = select(2, first_of(REFILLS))
  end
  return at
end

-- Lets one idle worker of each profile wait for the next refill; wakes one where none waits. Returns the wait (ms) of
-- `worker`, the caller, or ''.
local function watch_refills(profile, worker, is_idle)
  local _, at = first_of(REFILLS)
  if not at then return '' end
  local wait = ''
  if profile then
    local holder = redis.call('GET', watch_key(profile))
    if is_idle and (not holder or holder == worker) then
      wait = string.format('%d', math.max(0, math.ceil((tonumber(at) - now_us()) / 1000)))
      redis.call('SET', watch_key(profile), worker, 'PX', wait + 1000)
    elseif holder == worker then
      redis.call('DEL', watch_key(profile))
    end
  end
  for _, p in ipairs(profiles()) do
    if redis.call('EXISTS', watch_key(p)) == 0 then wake_one(p) end
  end
  return wait
end
