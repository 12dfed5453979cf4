--! include cursors
-- The cursors over lanes: their tasks in order, without tasks that run already or that a limit of their key or user holds back.
local function open_lane(lane, score, q, g)
  local _, _, _, _, _, weight = split_lane(lane)
  return { kind = 'lane', lane = lane, score = score, queue = q, gate = g, weight = weight, gates = gates_of(lane),
    read = 0, chunk = 2 }
end

-- Whether a limit of its user or key holds back the next task of a lane; the task then moves to the lane that this limit opens.
local function is_held(lane)
  if #lane.member <= 16 then return false end
  for _, g in ipairs(lane.gates) do
    if room_left(g) <= 0 then return false end  -- then so is the lane as a whole
  end
  local closed
  for _, g in ipairs(gates_of(lane.address)) do closed = closed or room_left(g) <= 0 end
  if not closed then return false end
  for _, place in ipairs(places(lane.address)) do
    if place[3] and place[1] ~= lane.lane and room_left(place[3]) <= 0 then
      found.left[lane.lane], found.opened[place[1]] = found.left[lane.lane] or {}, found.opened[place[1]] or {}
      local left, opened = found.left[lane.lane], found.opened[place[1]]
      left[#left + 1] = lane.member
      opened[#opened + 1] = lane.items[lane.pos + 1]
      opened[#opened + 1] = lane.id .. place[2]
      lane.pos = lane.pos + 2
      spend()
      return true
    end
  end
  return false
end

-- Finds the next task of a lane that does not run already and is not held back; false when there is none.
local function peek(lane)
  while true do
    if found.unfinished then
      lane.score = math.huge
      return false
    end
    if not lane.items or lane.pos > #lane.items then
      local items = redis.call('ZRANGE', lane_key(lane.lane), lane.read, lane.read + lane.chunk - 1, 'WITHSCORES')
      if #items == 0 then
        if lane.read == 0 then found.stale[lane.lane] = {} end
        if lane.read == 0 then spend() end
        lane.score = math.huge
        return false
      end
      local ids = {}
      for i = 1, #items, 2 do ids[#ids + 1] = string.sub(items[i], 1, 16) end
      lane.items, lane.pos = items, 1
      lane.leased = redis.call('HMGET', LEASES, unpack(ids))
      lane.read = lane.read + #ids
      lane.chunk = math.min(lane.chunk * 4, 500)
    end
    lane.member = lane.items[lane.pos]
    lane.id, lane.address = string.sub(lane.member, 1, 16), address_in(lane.lane, string.sub(lane.member, 17))
    if lane.leased[(lane.pos + 1) / 2] then
      found.stale[lane.lane] = found.stale[lane.lane] or {}
      table.insert(found.stale[lane.lane], lane.member)
      lane.pos = lane.pos + 2
    elseif not is_held(lane) then
      lane.score = tonumber(lane.items[lane.pos + 1])
      return true
    end
  end
end

-- Whether one of the lane's gates is closed; the lane must then move behind that gate.
local function is_closed(lane)
  for _, g in ipairs(lane.gates) do
    if room_left(g) <= 0 then
      if g ~= lane.gate then found.moved[#found.moved + 1] = { lane.lane, lane.gate, g } end
      if g ~= lane.gate then spend() end
      lane.score = math.huge
      return true
    end
  end
  return false
end

-- Whether the claim passes a lane by: its task needs more slots than are left, and another worker drains for it, or this one may
-- not. Else the claim stops at the lane.
local function passes_by(lane)
  if lane.weight <= free_slots then return false end
  local holder = reservations()[lane.lane]
  if may_reserve and (not holder or holder == worker_of_claim) then
    found.short = lane.lane
    return false
  end
  found.passed = true
  lane.score = math.huge
  return true
end

local function pick(lane)
  picks[#picks + 1] = { lane.id, lane.queue, lane.lane, lane.member, lane.address }
  rooms[lane.queue] = rooms[lane.queue] - 1
  for _, g in ipairs(gates_of(lane.address)) do rooms[g] = room_left(g) - 1 end
  free_slots = free_slots - lane.weight
  lane.pos = lane.pos + 2
end

-- Removes running members, and moves members that a limit holds back. Records the lanes in `changed`.
local function move_members(changed)
  for lane, ids in pairs(found.stale) do
    for i = 1, #ids, 1000 do redis.call('ZREM', lane_key(lane), unpack(ids, i, math.min(i + 999, #ids))) end
    changed[lane] = true
  end
  for lane, members in pairs(found.left) do
    redis.call('ZREM', lane_key(lane), unpack(members))
    changed[lane] = true
  end
  for lane, scores_and_members in pairs(found.opened) do
    redis.call('ZADD', lane_key(lane), unpack(scores_and_members))
    list_lane(lane)
    changed[lane] = true
  end
end
