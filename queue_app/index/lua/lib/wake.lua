-- Wakes exactly one idle worker; its claim passes the baton on while anybody idle has work.
local function wake_one(p)
  local idle = redis.call('ZPOPMIN', idle_key(p))
  if not idle[1] then return false end
  redis.call('RPUSH', wake_key(idle[1]), '1')
  redis.call('PEXPIRE', wake_key(idle[1]), 60000)
  return true
end

-- One worker that can run the lane, when the lane may run now.
local function wake_for_lane(lane)
  if queue_room((split_lane(lane))) <= 0 or global_room() <= 0 then return false end
  for _, p in ipairs(profiles_for(lane)) do
    if wake_one(p) then return true end
  end
  return false
end

-- Whether a profile has work that may start now. Takes out the full queues that it meets:
-- they stand in the heads of profiles that do not run the lanes which filled them.
local function has_work(p)
  while true do
    local q = redis.call('ZRANGE', heads_key(p), 0, 0)[1]
    if not q then return false end
    if queue_room(q) > 0 then return true end
    redis.call('ZREM', heads_key(p), q)
  end
end

local function wake_if_work(p)
  return redis.call('EXISTS', idle_key(p)) == 1 and has_work(p) and wake_one(p)
end

-- One worker of any profile that has work in front of it.
local function wake_any()
  if global_room() <= 0 then return false end
  for _, p in ipairs(profiles()) do
    if wake_if_work(p) then return true end
  end
  return false
end
