--! include lane_heads
--! include reservations
-- What a claim reads: sorted lists of queues, lanes and groups, and the lanes themselves, each as a cursor whose `score` is
-- that of its next entry (math.huge when it has none). Writes nothing; `found` collects what the claim must correct.
local picks = {}  -- {id, queue, lane}, ... in order
local MOST = 150  -- moves, closed gates and the like in one claim; it then stops, and its worker claims again at once
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
