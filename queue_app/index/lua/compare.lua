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
-- steps of a double, as the database rounds twice; a task that has not been promoted yet
-- stands right.
--! include keys
--! include limits
--! include promotion
local TOLERANCE = 0.02
local wrong = {}
for at = 1, #ARGV, 3 do
  local lane, packed, places = lane_of(ARGV[at]), ARGV[at + 1], ARGV[at + 2]
  local ids = {}
  for i = 1, #packed, 16 do ids[#ids + 1] = string.sub(packed, i, i + 15) end
  local standing = redis.call('ZMSCORE', lane_key(lane), unpack(ids))
  local absent = {}
  for i = 1, #ids do
    local stands = tonumber(standing[i] or nil)
    if not stands then
      absent[#absent + 1] = ids[i]
    else
      local own = struct.unpack('>d', places, 8 * i - 7)
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
return wrong
