local function call(worker)
  redis.call('RPUSH', wake_key(worker), '1')
  redis.call('PEXPIRE', wake_key(worker), 60000)
  return true
end

local function first_lane(p)
  local q = first(heads_key(p))
  local entry = q and first(queue_heads_key(p, q))
  if not entry then return nil end
  local who, g = split_entry(entry)
  if not who then return entry end
  if queue_policy(q).fair then return (first(turn_key(p, q, g, who))) end
  return (first(group_key(p, q, g)))
end

-- Wakes exactly one idle worker; its claim passes the baton on while anybody idle has work.
-- One that had too few free slots for the first task is called once it has enough for it.
local function wake_one(p)
  local idle = redis.call('ZPOPMIN', idle_key(p))
  if idle[1] then return call(idle[1]) end
  local lane = redis.call('EXISTS', short_key(p)) == 1 and first_lane(p)
  if not lane then return false end
  local weight = select(6, split_lane(lane))
  for _, g in ipairs(gates_of(lane)) do
    if gate_room(g) <= 0 then weight = 0 end  -- a claim will move it out of the way
  end
  local short = redis.call('ZRANGEBYSCORE', short_key(p), weight, '+inf', 'LIMIT', 0, 1)[1]
  if not short then return false end
  redis.call('ZREM', short_key(p), short)
  return call(short)
end

-- One worker that can run the lane, when the lane may run now.
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

-- Whether a profile has work that may start now. Takes out the full queues that it meets:
-- they stand in the heads of profiles that do not run the lanes which filled them.
local function has_work(p)
  while true do
    local q = first(heads_key(p))
    if not q then return false end
    if queue_room(q) > 0 then return true end
    refresh_queue(p, q)
  end
end

local function wake_if_work(p)
  return redis.call('EXISTS', idle_key(p), short_key(p)) > 0 and has_work(p) and wake_one(p)
end

-- One worker of any profile that has work in front of it.
local function wake_any()
  if global_room() <= 0 then return false end
  for _, p in ipairs(profiles()) do
    if wake_if_work(p) then return true end
  end
  return false
end

-- Brings back what only time held up; returns when the next does (us), if any.
local function open_refills()
  local at = select(2, first(REFILLS))
  while at and tonumber(at) <= now_us() do
    local due = redis.call('ZRANGEBYSCORE', REFILLS, '-inf', string.format('%.0f', now_us()), 'LIMIT', 0, 100)
    redis.call('ZREM', REFILLS, unpack(due))
    for _, g in ipairs(due) do
      if string.sub(g, 1, 1) == 'q' then refresh_queue_everywhere(string.sub(g, 3)) else refresh_gate(g) end
    end
    refresh_touched()
    at = select(2, first(REFILLS))
  end
  return at
end

-- Of the idle workers of a profile one waits for the next refill, told by its claim in how
-- many ms that is. Whoever finds that nobody does calls one.
local function watch(profile, worker, is_idle)
  local _, at = first(REFILLS)
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
