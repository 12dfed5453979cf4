--! include lane_heads
-- Wake-up calls. Exactly one idle worker is woken for new work; its claim wakes the next one while an idle worker has work.
local function wake_worker(worker)
  redis.call('RPUSH', wake_key(worker), '1')
  redis.call('PEXPIRE', wake_key(worker), 60000)
  return true
end

-- The lane of the next task of a profile.
local function next_lane(p)
  local q = first_of(heads_key(p))
  local entry = q and first_of(queue_heads_key(p, q))
  if not entry then return nil end
  local who, g = split_entry(entry)
  if not who then return entry end
  if queue_policy(q).fair then return (first_of(turn_key(p, q, g, who))) end
  return (first_of(group_key(p, q, g)))
end

-- Wakes an idle worker of a profile, else a worker that had too few free slots for the next task and now has enough.
local function wake_one(p)
  local idle = redis.call('ZPOPMIN', idle_key(p))
  if idle[1] then return wake_worker(idle[1]) end
  local lane = redis.call('EXISTS', short_key(p)) == 1 and next_lane(p)
  if not lane then return false end
  local weight = select(6, split_lane(lane))
  for _, g in ipairs(gates_of(lane)) do
    if gate_room(g) <= 0 then weight = 0 end  -- a claim will move the lane out of the way
  end
  local short = redis.call('ZRANGEBYSCORE', short_key(p), weight, '+inf', 'LIMIT', 0, 1)[1]
  if not short then return false end
  redis.call('ZREM', short_key(p), short)
  return wake_worker(short)
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

-- Puts the gates whose refill is due back into the heads; returns the instant (us) of the next refill, if any.
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

-- Makes one idle worker of each profile wait for the next refill; in a profile where no worker waits, wakes one. Returns
-- the ms that `worker`, the caller, must wait, or ''.
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
