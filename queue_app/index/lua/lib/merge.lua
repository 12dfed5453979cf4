--! include fair
-- A merge of sorted lists: the first tasks over all queues and lanes of a profile, in the order of their scores. It opens a
-- queue, a group or a lane only when its turn comes.
local open = {}  -- cursors from which the next task may come

-- Takes tasks from one lane while no other cursor has an earlier one.
local function take_lane(lane, bound)
  while #picks < max_picks and free_slots > 0 do
    if rooms[lane.queue] <= 0 then
      lane.score = math.huge
      return
    end
    if not peek(lane) or lane.score > bound or is_closed(lane) then return end
    if passes_by(lane) or found.short then return end
    pick(lane)
  end
end

local function open_queue(q, score)
  rooms[q] = queue_room(q)
  if rooms[q] <= 0 then
    found.outdated[#found.outdated + 1] = q
    spend()
  elseif queue_policy(q).fair then
    if not take_turn then prepare_fair_queues() end
    local fair = open_fair_queue(q)
    open[#open + 1] = fair
    if fair.score ~= score then found.outdated[#found.outdated + 1] = q end
  else
    local list = open_list('lanes', queue_heads_key(profile_of_claim, q), q, '')
    open[#open + 1] = list
    if list.score == math.huge then found.outdated[#found.outdated + 1] = q end
  end
end

-- Opens the next entry of a list: a lane, or the group behind a gate.
local function open_next(list)
  local name, score = list.name, list.score
  if rooms[list.queue] <= 0 or (list.gate ~= '' and room_left(list.gate) <= 0) then
    list.score = math.huge
    return
  end
  advance(list)
  if string.sub(name, 1, 1) ~= '\30' then
    open[#open + 1] = open_lane(name, score, list.queue, list.gate)
    return
  end
  local g = string.sub(name, 2)
  if room_left(g) > 0 then
    open[#open + 1] = open_list('lanes', group_key(profile_of_claim, list.queue, g), list.queue, g)
  end
end

-- Fills `picks` with at most `limit` tasks that need at most `slots` slots together.
local function merge(limit, slots)
  max_picks, free_slots = limit, slots
  open[1] = open_list('queues', heads_key(profile_of_claim))
  while #picks < limit and free_slots > 0 and not found.short and not found.unfinished do
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
      local q, score = best.name, best.score
      advance(best)
      open_queue(q, score)
    elseif best.kind == 'lanes' then
      open_next(best)
    elseif best.kind == 'fair' then
      take_turn(best)
    else
      local bound = second and second.score or math.huge
      if bound == math.huge then best.chunk = math.max(best.chunk, limit - #picks) end
      take_lane(best, bound)
    end
    if best.score == math.huge then
      open[at] = open[#open]
      open[#open] = nil
    end
  end
end
