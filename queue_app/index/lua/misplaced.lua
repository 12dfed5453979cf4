-- Returns the queued tasks that are missing or misplaced. Writes nothing.
--
-- ARGV     address, ids, own scores, ...: packed as for push
-- Returns  the ids at a wrong place in their lane, and the ids that have neither a place nor a lease
--
-- A task that has not been promoted yet is not misplaced. Places may differ by less than two steps of a double: from the
-- year 2106 on, a time in seconds has no exact microseconds. Rows arrive in the order of their age. Usually the lane holds
-- them in the same order, all lifted by the same number of bands; then one range read confirms all of them, which takes
-- half the time of one look-up for each.
--! include packed
--! include places
--! include promotion
local TOLERANCE = 0.02
local wrong = {}

-- Whether exactly these tasks stand between the first and the last of them, each at its place.
local function all_in_place(place, packed, scores, q)
  local n = #scores
  local lift_of_all = effective_place(scores[1], q) - scores[1]
  if math.floor(scores[1] / 1e13) ~= math.floor(scores[n] / 1e13)
      or effective_place(scores[n], q) - scores[n] ~= lift_of_all then
    return false
  end
  local standing = redis.call('ZRANGE', lane_key(place[1]), exact(scores[1] + lift_of_all - TOLERANCE),
    exact(scores[n] + lift_of_all + TOLERANCE), 'BYSCORE', 'WITHSCORES', 'LIMIT', 0, n + 1)
  if #standing ~= 2 * n then return false end
  local ids = {}
  for i = 1, n do
    local differs = standing[2 * i] - lift_of_all - scores[i]  -- Lua converts the text to a number
    if differs > TOLERANCE or differs < -TOLERANCE then return false end
    if string.sub(standing[2 * i - 1], 17) ~= place[2] then return false end
    ids[i] = string.sub(standing[2 * i - 1], 1, 16)
  end
  return table.concat(ids) == packed
end

local function look_up_each(where, packed, scores, q)
  local ids, absent, standing = unpack_ids(packed), {}, {}
  for _, place in ipairs(where) do
    local members = {}
    for i = 1, #ids do members[i] = ids[i] .. place[2] end
    for i, score in ipairs(redis.call('ZMSCORE', lane_key(place[1]), unpack(members))) do
      standing[i] = standing[i] or tonumber(score or nil)
    end
  end
  for i = 1, #ids do
    local own, stands = scores[i], standing[i]
    local above = own - (stands or own)
    if not stands then
      absent[#absent + 1] = ids[i]
    elseif above > TOLERANCE then  -- right if lifted by whole bands, and no more than its age allows
      local rest = (above + TOLERANCE) % 1e13
      if rest > 2 * TOLERANCE or stands < effective_place(own, q) - TOLERANCE then wrong[#wrong + 1] = ids[i] end
    elseif above < -TOLERANCE then
      wrong[#wrong + 1] = ids[i]
    end
  end
  if #absent > 0 then
    local leased = redis.call('HMGET', LEASES, unpack(absent))
    for i = 1, #absent do
      if not leased[i] then wrong[#wrong + 1] = absent[i] end
    end
  end
end

-- Whether the sets of lanes and queues name the lane of waiting tasks. A push of any of them puts it there.
local listed = {}
local function is_listed(lane)
  if listed[lane] == nil then
    local q, task_type = split_lane(lane)
    listed[lane] = redis.call('EXISTS', lane_key(lane)) == 0
      or (redis.call('SISMEMBER', lanes_key(q), lane) == 1 and redis.call('SISMEMBER', QUEUES, q) == 1
        and redis.call('HEXISTS', types_key(q), task_type) == 1)
  end
  return listed[lane]
end

for at = 1, #ARGV, 3 do
  local where, packed, scores = open_places(address_of(ARGV[at])), ARGV[at + 1], own_places(ARGV[at], ARGV[at + 2])
  local q = split_lane(ARGV[at])
  if #scores > 0 then
    for _, place in ipairs(where) do
      if not is_listed(place[1]) then wrong[#wrong + 1] = string.sub(packed, 1, 16) end
    end
    if #where > 1 or not all_in_place(where[1], packed, scores, q) then look_up_each(where, packed, scores, q) end
  end
end
return wrong
