-- Reads the first tasks over all queues and lanes of a profile, in order of their scores: a
-- merge of sorted lists that opens a queue, a group or a lane only when its turn comes.
-- Writes nothing, but says what a claim has to put right. One function, though a long one: its
-- parts share as locals what is open and what room is left.
--
-- Returns  picks   {{id, queue, lane}, ...} in order: at most `limit`, of at most `slots` slots together
--          found   stale {lane -> ids that run already: copies that lag behind; none where the lane is empty, and a
--                  rebuild that others wrote into left it among the heads}
--                  shut  {queues that were met but have no room}, closed {gates likewise}
--                  moved {{lane, gate it was behind, gate that is closed}, ...}
--                  taken {queue -> {band -> {who -> when it has its next turn}}} of fair queues
--                  late  {{queue, gate, who}, ...} whose turn comes later than their entry says
--                  left  slots that are left; short whether the next task takes more
--                  rooms {gate -> what is left of its room}
local function merge(profile, limit, slots)
  local picks = {}
  local found = { stale = {}, shut = {}, closed = {}, moved = {}, taken = {}, late = {}, short = false }
  local open = {}    -- what the next task may come from; each has the score of its first
  local rooms = {}   -- gate -> how many of its tasks may still start

  local function room(g)
    local n = rooms[g]
    if not n then
      n = gate_room(g)
      rooms[g] = n
      if n <= 0 then found.closed[#found.closed + 1] = g end
    end
    return n
  end

  -- A sorted list that is read some entries at a time: `name` and `score` are its next.
  local function advance(list)
    if list.pos > #list.entries then
      if list.done then
        list.score = math.huge
        return list
      end
      list.entries = redis.call('ZRANGE', list.key, list.rank, list.rank + limit, 'WITHSCORES')
      list.rank, list.pos = list.rank + #list.entries / 2, 1
      list.done = #list.entries <= 2 * limit
      if #list.entries == 0 then
        list.score = math.huge
        return list
      end
    end
    list.name, list.score = list.entries[list.pos], tonumber(list.entries[list.pos + 1])
    list.pos = list.pos + 2
    return list
  end

  local function list_of(kind, key, q, g)
    return advance({ kind = kind, key = key, queue = q, gate = g, entries = {}, pos = 1, rank = 0 })
  end

  local function lane_at(lane, score, q, g)
    local _, _, _, _, _, weight = split_lane(lane)
    return { kind = 'lane', lane = lane, score = score, queue = q, gate = g, weight = weight, gates = gates_of(lane),
      read = 0, chunk = 2 }
  end

  -- The next id of a lane that does not run already.
  local function peek(lane)
    while true do
      if not lane.items or lane.pos > #lane.items then
        local items = redis.call('ZRANGE', lane_key(lane.lane), lane.read, lane.read + lane.chunk - 1, 'WITHSCORES')
        if #items == 0 then
          if lane.read == 0 then found.stale[lane.lane] = {} end
          lane.score = math.huge
          return false
        end
        local ids = {}
        for i = 1, #items, 2 do ids[#ids + 1] = items[i] end
        lane.items, lane.pos = items, 1
        lane.leased = redis.call('HMGET', LEASES, unpack(ids))
        lane.read = lane.read + #ids
        lane.chunk = math.min(lane.chunk * 4, 500)
      end
      lane.id = lane.items[lane.pos]
      if not lane.leased[(lane.pos + 1) / 2] then
        lane.score = tonumber(lane.items[lane.pos + 1])
        return true
      end
      found.stale[lane.lane] = found.stale[lane.lane] or {}
      table.insert(found.stale[lane.lane], lane.id)
      lane.pos = lane.pos + 2
    end
  end

  -- Whether one of the lane's gates is closed; it is then to stand behind that one.
  local function is_closed(lane)
    for _, g in ipairs(lane.gates) do
      if room(g) <= 0 then
        if g ~= lane.gate then found.moved[#found.moved + 1] = { lane.lane, lane.gate, g } end
        lane.score = math.huge
        return true
      end
    end
    return false
  end

  local function pick(lane)
    picks[#picks + 1] = { lane.id, lane.queue, lane.lane }
    rooms[lane.queue] = rooms[lane.queue] - 1
    for _, g in ipairs(lane.gates) do rooms[g] = rooms[g] - 1 end
    slots = slots - lane.weight
    lane.pos = lane.pos + 2
  end

  -- Takes from one lane as long as nothing else has an earlier task.
  local function take(lane, bound)
    while #picks < limit do
      if rooms[lane.queue] <= 0 then
        lane.score = math.huge
        return
      end
      if not peek(lane) or lane.score > bound or is_closed(lane) then return end
      if lane.weight > slots then
        found.short = true
        return
      end
      pick(lane)
    end
  end

  -- What only fair queues need is made when the first of them is met.
  local settle, take_turn
  local function prepare_turns()
    local function share_of(fair, who)
      if fair.shares == nil then fair.shares = redis.call('EXISTS', weights_key(fair.queue)) == 1 and {} end
      if not fair.shares then return 1 end
      if not fair.shares[who] then
        fair.shares[who] = tonumber(redis.call('HGET', weights_key(fair.queue), who) or nil) or 1
      end
      return fair.shares[who]
    end

    local function start_of(fair, band, who)
      local starts = fair.turns[band]
      if not starts then
        starts = {}
        fair.turns[band] = starts
      end
      if not starts[who] then starts[who] = turn_of(fair.queue, band, who) end
      return math.max(starts[who], fair.now[band] or 0)
    end

    -- Finds the first task of somebody's lanes; false when there is none that may start.
    local function look_at(fair, branch)
      while true do
        local best
        for _, lane in ipairs(branch.lanes) do
          if lane.score < math.huge and (not best or lane.score < best.score) then best = lane end
        end
        if branch.list.score < math.huge and (not best or branch.list.score <= best.score) then
          local lane = lane_at(branch.list.name, branch.list.score, fair.queue, branch.gate)
          advance(branch.list)
          branch.lanes[#branch.lanes + 1] = lane
        elseif not best then
          return false
        else
          local before = best.score
          if peek(best) and not is_closed(best) and best.score <= before then
            branch.first, branch.real = best, best.score
            branch.band = math.floor(best.score / 1e13)
            return true
          end
        end
      end
    end

    -- The branches stand in order, the next one last.
    local function is_before(one, other)
      if one.score ~= other.score then return one.score < other.score end
      if one.who ~= other.who then return one.who < other.who end
      return one.real < other.real
    end

    local function place_branch(fair, branch)
      branch.score = branch.band * 1e13 + start_of(fair, branch.band, branch.who)
      local low, high = 1, #fair.branches + 1
      while low < high do
        local middle = math.floor((low + high) / 2)
        if is_before(branch, fair.branches[middle]) then low = middle + 1 else high = middle end
      end
      table.insert(fair.branches, low, branch)
    end

    local function lift_branch(fair, branch)
      local at = #fair.branches
      while fair.branches[at] ~= branch do at = at - 1 end
      table.remove(fair.branches, at)
      branch.score = math.huge
    end

    -- Finds whose turn it is in a fair queue: the queue then stands at the score of that task.
    settle = function(fair)
      while true do
        local best, list = fair.branches[#fair.branches], nil
        for _, each in ipairs(fair.lists) do
          if each.score < math.huge and (not list or each.score < list.score
              or (each.score == list.score and each.name < list.name)) then
            list = each
          end
        end
        if rooms[fair.queue] <= 0 or not (best or list) then
          fair.score = math.huge
          return
        end
        local who, g
        if list then who, g = split_entry(list.name) end
        if list and (not best or list.score < best.score or (list.score == best.score and who <= best.who)) then
          local stood, at = list.score, list.gate
          advance(list)
          if g ~= '' then
            if room(g) > 0 then
              fair.lists[#fair.lists + 1] = list_of('turns', list_key(profile, fair.queue, g), fair.queue, g)
            end
          elseif at == '' or room(at) > 0 then
            local branch = { who = who, gate = at, lanes = {},
              list = list_of('lanes', turn_key(profile, fair.queue, at, who), fair.queue, at) }
            if look_at(fair, branch) then
              place_branch(fair, branch)
              fair.of[who] = fair.of[who] or {}
              table.insert(fair.of[who], branch)
              if branch.score > stood then found.late[#found.late + 1] = { fair.queue, at, who } end
            end
          else
            list.score = math.huge
          end
        else
          fair.best, fair.score = best, best.real
          return
        end
      end
    end

    -- Takes the task whose turn it is; the others of who had it come one turn later.
    take_turn = function(fair)
      local branch = fair.best
      local lane, band, who = branch.first, branch.band, branch.who
      -- What was taken meanwhile may have closed a gate, and what is found then is another task.
      if is_closed(lane) then
        lift_branch(fair, branch)
        if look_at(fair, branch) then place_branch(fair, branch) end
        return settle(fair)
      end
      if lane.weight > slots then
        found.short = true
        return
      end
      pick(lane)
      local start = start_of(fair, band, who)
      local share = share_of(fair, who)
      fair.now[band] = start
      fair.turns[band][who] = start + 1000 / share
      found.taken[fair.queue] = found.taken[fair.queue] or {}
      found.taken[fair.queue][band] = found.taken[fair.queue][band] or {}
      found.taken[fair.queue][band][who] = fair.turns[band][who]
      found.taken[fair.queue][band][NOW] = start
      for _, other in ipairs(fair.of[who]) do
        if other.score < math.huge then
          lift_branch(fair, other)
          if other ~= branch or look_at(fair, other) then place_branch(fair, other) end
        end
      end
      settle(fair)
    end
  end

  local function open_queue(q)
    rooms[q] = queue_room(q)
    if rooms[q] <= 0 then
      found.shut[#found.shut + 1] = q
    elseif queue_policy(q).fair then
      if not settle then prepare_turns() end
      local fair = { kind = 'fair', queue = q, branches = {}, of = {}, turns = {}, now = {},
        lists = { list_of('turns', queue_heads_key(profile, q), q, '') } }
      settle(fair)
      open[#open + 1] = fair
    else
      open[#open + 1] = list_of('lanes', queue_heads_key(profile, q), q, '')
      if open[#open].score == math.huge then found.shut[#found.shut + 1] = q end
    end
  end

  -- Opens what stands next in a list of lanes: a lane, or a group behind a gate.
  local function open_next(list)
    local name, score = list.name, list.score
    if rooms[list.queue] <= 0 or (list.gate ~= '' and room(list.gate) <= 0) then
      list.score = math.huge
      return
    end
    advance(list)
    if string.sub(name, 1, 1) ~= '\30' then
      open[#open + 1] = lane_at(name, score, list.queue, list.gate)
      return
    end
    local g = string.sub(name, 2)
    if room(g) > 0 then
      open[#open + 1] = list_of('lanes', group_key(profile, list.queue, g), list.queue, g)
    end
  end

  open[1] = list_of('queues', heads_key(profile))
  while #picks < limit and not found.short do
    local best, second, at
    for i = 1, #open do
      local each = open[i]
      if not best or each.score < best.score or (each.score == best.score and best.kind == 'lane') then
        best, second, at = each, best, i
      elseif not second or each.score < second.score then
        second = each
      end
    end
    if not best or best.score == math.huge then
      break
    elseif best.kind == 'queues' then
      local q = best.name
      advance(best)
      open_queue(q)
    elseif best.kind == 'lanes' then
      open_next(best)
    elseif best.kind == 'fair' then
      take_turn(best)
    else
      local bound = second and second.score or math.huge
      if bound == math.huge then best.chunk = math.max(best.chunk, limit - #picks) end
      take(best, bound)
    end
    if best.score == math.huge then
      open[at] = open[#open]
      open[#open] = nil
    end
  end
  found.left, found.rooms = slots, rooms
  return picks, found
end
