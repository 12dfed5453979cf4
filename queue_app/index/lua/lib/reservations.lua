--! include keys
-- Reservations. A worker that meets a task with more weight than it has free slots reserves the lane of that task: it takes
-- nothing behind the task until its running tasks have freed enough slots. Other workers pass the lane by. A worker drains for
-- one lane at a time. Each of its claims that stops at the lane renews the reservation; workers with a free slot claim every
-- 10 s.
local RESERVED_US = 30000000

-- Returns lane -> worker. Deletes reservations that have lapsed or are unreadable, and shortens reservations that end too late
-- because the clock went back.
local holders
local function reservations()
  if holders then return holders end
  holders = {}
  local stored = redis.pcall('HGETALL', RESERVATIONS)
  if stored.err then
    redis.call('DEL', RESERVATIONS)
    return holders
  end
  local latest = now_us() + RESERVED_US
  for i = 1, #stored, 2 do
    local ends, worker = string.match(stored[i + 1], '^(%d+) ([%w-]+)$')
    ends = tonumber(ends or nil)
    if not ends or ends <= now_us() then
      redis.call('HDEL', RESERVATIONS, stored[i])
    else
      holders[stored[i]] = worker
      if ends > latest then redis.call('HSET', RESERVATIONS, stored[i], whole(latest) .. ' ' .. worker) end
    end
  end
  return holders
end

-- Ends the reservations of a worker, except of the lane `kept`.
local function end_reservations(worker, kept)
  for lane, holder in pairs(reservations()) do
    if holder == worker and lane ~= kept then
      redis.call('HDEL', RESERVATIONS, lane)
      holders[lane] = nil
    end
  end
end

-- Reserves a lane, or renews its reservation.
local function reserve(lane, worker)
  end_reservations(worker, lane)
  redis.call('HSET', RESERVATIONS, lane, whole(now_us() + RESERVED_US) .. ' ' .. worker)
  redis.call('PEXPIRE', RESERVATIONS, 2 * RESERVED_US / 1000)
  holders[lane] = worker
end
