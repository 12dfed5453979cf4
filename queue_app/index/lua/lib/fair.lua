--! include branches
-- A fair queue within a claim. Its users or keys (owners) take turns in each band; an owner with share n has n times the
-- turns of one with share 1.
local open_fair_queue, take_turn
local function prepare_fair_queues()
  prepare_branches()

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
      if rooms[fair.queue] <= 0 or not (best or list) or found.unfinished then
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
    if is_closed(lane) or is_held(lane) or passes_by(lane) then
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
