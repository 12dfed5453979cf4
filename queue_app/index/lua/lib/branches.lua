--! include lane_cursors
-- The branches of a fair queue within a claim. A branch is one owner behind one gate, with the lanes of that owner there.
--
-- Lua creates the functions of a script in every call, so these are created only when a claim meets a fair queue.
local share_of, next_turn, find_first, insert_branch, remove_branch
local function prepare_branches()
  function share_of(fair, who)
    if fair.shares == nil then fair.shares = redis.call('EXISTS', weights_key(fair.queue)) == 1 and {} end
    if not fair.shares then return 1 end
    if not fair.shares[who] then
      fair.shares[who] = tonumber(redis.call('HGET', weights_key(fair.queue), who) or nil) or 1
    end
    return fair.shares[who]
  end

  -- The next turn of an owner, not before the turn taken last.
  function next_turn(fair, band, who)
    local known = fair.turns[band]
    if not known then
      known = {}
      fair.turns[band] = known
    end
    if not known[who] then known[who] = turn_of(fair.queue, band, who) end
    return math.max(known[who], fair.now[band] or 0)
  end

  -- Finds the first task of a branch; false when none of its tasks may start.
  function find_first(fair, branch)
    while true do
      if found.unfinished then return false end
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
  function insert_branch(fair, branch)
    -- The lane for which this worker drains comes first in its band: the turns of others continue meanwhile.
    branch.score = branch.band * 1e13 + (branch.first.lane == fair.reserved and -1 or next_turn(fair, branch.band, branch.who))
    local low, high = 1, #fair.branches + 1
    while low < high do
      local middle = math.floor((low + high) / 2)
      if is_before(branch, fair.branches[middle]) then low = middle + 1 else high = middle end
    end
    table.insert(fair.branches, low, branch)
  end

  function remove_branch(fair, branch)
    local at = #fair.branches
    while fair.branches[at] ~= branch do at = at - 1 end
    table.remove(fair.branches, at)
    branch.score = math.huge
  end
end
