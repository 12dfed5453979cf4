--! include cursors
-- A fair queue within a claim. Its users or keys (owners) take turns in each band; an owner with share n has n times the
-- turns of one with share 1. A branch is one owner behind one gate, with the lanes of that owner there.
--
-- Lua creates the functions of a script in every call, so these are created only when a claim meets a fair queue.
local open_fair_queue, take_turn
local function prepare_fair_queues()
  local function share_of(fair, who)
    if fair.shares == nil then fair.shares = redis.call('EXISTS', weights_key(fair.queue)) == 1 and {} end
    if not fair.shares then return 1 end
    if not fair.shares[who] then
      fair.shares[who] = tonumber(redis.call('HGET', weights_key(fair.queue), who) or nil) or 1
    end
    return fair.shares[who]
  end

  -- The next turn of an owner, not before the turn taken last.
  local function next_turn(fair, band, who)
    local known = fair.turns[band]
    if not known then
      known = {}
      fair.turns[band] = known
    end
    if not known[who] then known[who] = turn_of(fair.queue, band, who) end
    return math.max(known[who], fair.now[band] or 0)
  end

  -- Finds the first task of a branch; false when none of its tasks may start.
  local function find_first(fair, branch)
    while true do
      local best
      for _, lane in ipairs(branch.lanes) do
        if lane.score < math.huge and (not best or lane.score < best.score) then best = lane end
      end
      if branch.list.score < math.huge and (not best or branch.list.score <= best.score) then
        local lane = open_lane(branch.list.name, branch.list.score, fair.queue, branch.gate)
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

  local function is_before(one, other)
    if one.score ~= other.score then return one.score < other.score end
    if one.who ~= other.who then return one.who < other.who end
    return one.real < other.real
  end

  -- Inserts a branch at its turn; the branches are in order, the next one last.
  local function insert_branch(fair, branch)
    -- The lane for which this worker drains comes first in its band: the turns of others go on meanwhile.
    branch.score = branch.band * 1e13 + (branch.first.lane == fair.reserved and -1 or next_turn(fair, branch.band, branch.who))
    local low, high = 1, #fair.branches + 1
    while low < high do
      local middle = math.floor((low + high) / 2)
      if is_before(branch, fair.branches[middle]) then low = middle + 1 else high = middle end
    end
    table.insert(fair.branches, low, branch)
  end

  local function remove_branch(fair, branch)
    local at = #fair.branches
    while fair.branches[at] ~= branch do at = at - 1 end
    table.remove(fair.branches, at)
    branch.score = math.huge
  end

  local function open_branch(fair, who, g)
    local branch = { who = who, gate = g, lanes = {},
      list = open_list('lanes', turn_key(profile_of_claim, fair.queue, g, who), fair.queue, g) }
    if not find_first(fair, branch) then return nil end
    insert_branch(fair, branch)
    fair.of[who] = fair.of[who] or {}
    table.insert(fair.of[who], branch)
    return branch
  end

  -- Opens the branch of the lane for which the worker drains.
  local function open_reserved(fair)
    for lane, holder in pairs(reservations()) do
      if holder == worker_of_claim and split_lane(lane) == fair.queue then
        local who, g = turn_owner(queue_policy(fair.queue).fair, lane), group_of(profile_of_claim, lane)
        if g == '' or room_left(g) > 0 then
          fair.reserved, fair.opened = lane, who .. '\30' .. g
          open_branch(fair, who, g)
        end
      end
    end
  end

  -- Opens the next entry of a list of owners: a group of owners behind a gate, or one owner.
  local function open_entry(fair, list, who, g)
    local stood, at = list.score, list.gate
    advance(list)
    if g == '' and fair.opened == who .. '\30' .. at then return end
    if g ~= '' then
      if room_left(g) > 0 then
        fair.lists[#fair.lists + 1] = open_list('turns', list_key(profile_of_claim, fair.queue, g), fair.queue, g)
      end
    elseif at == '' or room_left(at) > 0 then
      local branch = open_branch(fair, who, at)
      if branch and branch.score > stood then found.late[#found.late + 1] = { fair.queue, at, who } end
    else
      list.score = math.huge
    end
  end

  -- Finds whose turn it is; the queue then stands at the score of that owner's first task.
  local function find_turn(fair)
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
      if not list or (best and (list.score > best.score or (list.score == best.score and who > best.who))) then
        fair.best, fair.score = best, best.real
        return
      end
      open_entry(fair, list, who, g)
    end
  end

  function open_fair_queue(q)
    local fair = { kind = 'fair', queue = q, branches = {}, of = {}, turns = {}, now = {},
      lists = { open_list('turns', queue_heads_key(profile_of_claim, q), q, '') } }
    if has_heavy then open_reserved(fair) end
    find_turn(fair)
    return fair
  end

  -- Takes the task whose turn it is. The next turn of its owner begins one share later.
  function take_turn(fair)
    local branch = fair.best
    local lane, band, who = branch.first, branch.band, branch.who
    -- An earlier pick may have closed a gate: then another task is the first of the branch.
    if is_closed(lane) or passes_by(lane) then
      remove_branch(fair, branch)
      if find_first(fair, branch) then insert_branch(fair, branch) end
      return find_turn(fair)
    end
    if found.short then return end
    pick(lane)
    local start = next_turn(fair, band, who)
    local following = start + 1000 / share_of(fair, who)
    fair.now[band], fair.turns[band][who] = start, following
    found.taken[fair.queue] = found.taken[fair.queue] or {}
    found.taken[fair.queue][band] = found.taken[fair.queue][band] or {}
    found.taken[fair.queue][band][who], found.taken[fair.queue][band][NOW] = following, start
    for _, other in ipairs(fair.of[who]) do
      if other.score < math.huge then
        remove_branch(fair, other)
        if other ~= branch or find_first(fair, other) then insert_branch(fair, other) end
      end
    end
    find_turn(fair)
  end
end
