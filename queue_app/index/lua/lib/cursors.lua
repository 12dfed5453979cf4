--! include lane_heads
--! include reservations
-- What a claim reads: sorted lists of queues, lanes and groups, and the lanes themselves, each as a cursor whose `score` is
-- that of its next entry (math.huge when it has none). Writes nothing; `found` collects what the claim must correct.
local picks = {}  -- {id, queue, lane}, ... in order
local MOST = 200  -- moves, closed gates and the like in one claim; it then stops, and its worker claims again at once
local found = {
  stale = {},     -- lane -> ids that run already (a copy of the data may lag behind); {} for a lane that is empty
  outdated = {},  -- queues that the heads still list, without room or without lanes
  closed = {},    -- gates that have no room
  moved = {},     -- {lane, gate it was behind, gate that is closed}, ...
  left = {},      -- lane -> members that a limit holds back
  opened = {},    -- lane that a limit opens -> scores and members that come to it
  work = 0, unfinished = false,
  taken = {},     -- fair queue -> band -> owner -> its next turn
  late = {},      -- {queue, gate, owner}, ... whose turn comes later than their entry says
  short = nil,    -- lane at which the claim stopped: its task needs more slots than are left
  passed = false, -- whether the claim passed lanes by for which other workers drain
}
local rooms = {}  -- queue or gate -> room that is left
local profile_of_claim, worker_of_claim, may_reserve, has_heavy, max_picks, free_slots

local function spend()
  found.work = found.work + 1
  found.unfinished = found.work >= MOST
end

local function room_left(g)
  local n = rooms[g]
  if not n then
    n = gate_room(g)
    rooms[g] = n
    if n <= 0 then
      found.closed[#found.closed + 1] = g
      spend()
    end
  end
  return n
end

-- Moves a list to its next entry, `name` at `score`; reads several entries at a time.
local function advance(list)
  if list.pos > #list.entries then
    if list.done then
      list.score = math.huge
      return list
    end
    list.entries = redis.call('ZRANGE', list.key, list.rank, list.rank + max_picks, 'WITHSCORES')
    list.rank, list.pos = list.rank + #list.entries / 2, 1
    list.done = #list.entries <= 2 * max_picks
    if #list.entries == 0 then
      list.score = math.huge
      return list
    end
  end
  list.name, list.score = list.entries[list.pos], tonumber(list.entries[list.pos + 1])
  list.pos = list.pos + 2
  return list
end

local function open_list(kind, key, q, g)
  return advance({ kind = kind, key = key, queue = q, gate = g, entries = {}, pos = 1, rank = 0 })
end

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
        if lane.read == 0 then
          found.stale[lane.lane] = {}
          spend()
        end
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
      if g ~= lane.gate then
        found.moved[#found.moved + 1] = { lane.lane, lane.gate, g }
        spend()
      end
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
