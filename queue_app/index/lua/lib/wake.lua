--! include short
-- Wake-up calls. Exactly one idle worker is woken for new work; its claim wakes the next one while an idle worker has work.

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
  for _, p in ipairs(profiles()) do
    if redis.call('EXISTS', idle_key(p), short_key(p)) > 0 and can_run(p, lane) and wake_one(p) then return true end
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
