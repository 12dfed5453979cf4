-- Promotion, as queue_app/core/promotion.py defines it. A task's own place is its own band *
-- 10^13 + queued_at; it stands so many bands above that as its age gives it by the thresholds,
-- which are copies of the policies. So every push puts a task where it belongs now, and none
-- takes back what promotion gave.
local thresholds, clock  -- band -> ms; the time (ms): read when first needed

local function effective(own)
  if not thresholds then
    local seconds = redis.call('HMGET', SETTINGS, 'promote_2', 'promote_3', 'promote_4')
    thresholds, clock = {}, now_us() / 1000
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

-- Lets a task that waits at one of its places rise to `place`; returns by how many bands, or
-- nil when it stands at none of them, or too high: that is no matter of promotion.
local steps = { [2] = 0, [3] = 0, [4] = 0 }  -- band -> tasks that left it upwards, in this call
local function rise(lane, id, own, place)
  local standing = tonumber(redis.call('ZSCORE', lane_key(lane), id) or nil)
  if not standing or standing < place or standing > own or (own - standing) % 1e13 ~= 0 then return nil end
  if standing == place then return 0 end
  redis.call('ZADD', lane_key(lane), string.format('%.17g', place), id)
  local from, to = math.floor(standing / 1e13), math.floor(place / 1e13)
  for band = from, to + 1, -1 do steps[band] = steps[band] + 1 end
  return from - to
end

local NAMES = { [2] = 'normal:high', [3] = 'low:normal', [4] = 'background:low' }
local function count_promotions()
  for band, n in pairs(steps) do
    if n > 0 then redis.call('HINCRBY', COUNTERS, 'promoted:' .. NAMES[band], n) end
  end
end
