-- Tells which queued tasks are not where they belong. Writes nothing.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV     lane, ids, own places, lane, ids, own places, ... ids one after another, 16 bytes each;
--          places (band * 10^13 + queued_at) as big-endian doubles, in the same order; at most
--          1000 of a lane
-- Returns  the ids that are in no lane of their own and hold no lease, or stand at a wrong place
--
-- The same judgement as push, for rows that the database has packed: a rolling comparison
-- costs nobody a step for each row but the two servers. A place may differ by less than two
-- steps of a double: from 2106 on a time in seconds has no exact microseconds there. A task that
-- has not been promoted yet stands right.
--
-- Rows come in the order of their age, and mostly stand in that order, all as high above their
-- own place: then one walk along the lane tells, for half of what looking each up takes.
--! include keys
--! include packed
--! include limits
--! include promotion
local TOLERANCE = 0.02
local wrong = {}

-- Whether exactly these tasks stand between the first and the last of them, each where it belongs.
local function all_stand(lane, packed, places)
  local n = #places
  local rises = effective(places[1]) - places[1]
  if math.floor(places[1] / 1e13) ~= math.floor(places[n] / 1e13) or effective(places[n]) - places[n] ~= rises then
    return false
  end
  local found = redis.call('ZRANGE', lane_key(lane), string.format('%.17g', places[1] + rises - TOLERANCE),
    string.format('%.17g', places[n] + rises + TOLERANCE), 'BYSCORE', 'WITHSCORES', 'LIMIT', 0, n + 1)
  if #found ~= 2 * n then return false end
  local ids = {}
  for i = 1, n do
    local differs = found[2 * i] - rises - places[i]  -- a text counts as its number
    if differs > TOLERANCE or differs < -TOLERANCE then return false end
    ids[i] = found[2 * i - 1]
  end
  return table.concat(ids) == packed
end

local function look_up_each(lane, packed, places)
  local ids, absent = unpack_ids(packed), {}
  local standing = redis.call('ZMSCORE', lane_key(lane), unpack(ids))
  for i = 1, #ids do
    local stands = tonumber(standing[i] or nil)
    if not stands then
      absent[#absent + 1] = ids[i]
    else
      local own = places[i]
      local above = own - stands
      if above > TOLERANCE then  -- risen, by whole bands and not more than its age gives it
        local rest = (above + TOLERANCE) % 1e13
        if rest > 2 * TOLERANCE or stands < effective(own) - TOLERANCE then wrong[#wrong + 1] = ids[i] end
      elseif above < -TOLERANCE then
        wrong[#wrong + 1] = ids[i]
      end
    end
  end
  if #absent > 0 then
    local leased = redis.call('HMGET', LEASES, unpack(absent))
    for i = 1, #absent do
      if not leased[i] then wrong[#wrong + 1] = absent[i] end
    end
  end
end

for at = 1, #ARGV, 3 do
  local lane, packed, places = lane_of(ARGV[at]), ARGV[at + 1], unpack_places(ARGV[at + 2])
  if #places > 0 and not all_stand(lane, packed, places) then look_up_each(lane, packed, places) end
end
return wrong
