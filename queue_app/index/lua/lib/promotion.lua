--! include limits
--! include packed
-- Promotion, as queue_app/core/priorities.py defines it. A task's own place is its own band * 10^13 + queued_at (ms). Its
-- age, by PostgreSQL's clock, lifts it by whole bands, according to the thresholds. Every push computes the place from the
-- age, so a push never undoes a promotion.
--
-- In a queue of the order `arrival` the own places of all tasks are in the band normal, and none rises: time alone orders them.
local thresholds, clock  -- band -> ms; current time (ms)

-- The own place of a task of a queue, as its row's band and time give it.
local function own_place(place, q)
  return queue_policy(q).arrival and place % 1e13 + 2e13 or place
end

-- The own places of an argument, which are all of one address.
local function own_places(address, packed)
  local q, found = split_lane(address), unpack_places(packed)
  if queue_policy(q).arrival then
    for i, place in ipairs(found) do found[i] = own_place(place, q) end
  end
  return found
end

local function effective_place(own, q)
  if queue_policy(q).arrival then return own end
  if not thresholds then
    local seconds = redis.call('HMGET', SETTINGS, 'promote_2', 'promote_3', 'promote_4')
    thresholds, clock = {}, (now_us() + rows_ahead()) / 1000
    for i = 1, 3 do thresholds[i + 1] = seconds[i] and tonumber(seconds[i]) * 1000 end
  end
  local band = math.floor(own / 1e13)
  local place, due = own, own - band * 1e13
  while thresholds[band] and clock >= due + thresholds[band] do
    due = due + thresholds[band]
    place = place - 1e13  -- exact: a smaller number has finer steps
    band = band - 1
  end
  return place
end

-- Lifts a waiting task to `place`; returns by how many bands. Returns nil if the task's present place does not come from
-- its own place by promotion, or is above `place`: then the place is wrong, and push.lua corrects it.
local promoted = { [2] = 0, [3] = 0, [4] = 0 }  -- band -> number of tasks that this call lifted out of it
local function lift(lane, member, own, place)
  local standing = tonumber(redis.call('ZSCORE', lane_key(lane), member) or nil)
  if not standing or standing < place or standing > own or (own - standing) % 1e13 ~= 0 then return nil end
  if standing == place then return 0 end
  redis.call('ZADD', lane_key(lane), exact(place), member)
  local from, to = math.floor(standing / 1e13), math.floor(place / 1e13)
  for band = from, to + 1, -1 do promoted[band] = promoted[band] + 1 end
  return from - to
end

local STEPS = { [2] = 'normal:high', [3] = 'low:normal', [4] = 'background:low' }
local function count_promotions()
  for band, n in pairs(promoted) do
    if n > 0 then add_to('promoted:' .. STEPS[band], n) end
  end
end
