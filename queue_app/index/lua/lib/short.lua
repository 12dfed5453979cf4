--! include lane_heads
--! include reservations
local function wake_worker(worker)
  redis.call('RPUSH', wake_key(worker), '1')
  redis.call('PEXPIRE', wake_key(worker), 60000)
  return true
end

-- Wakes a worker that lacked free slots and has enough for a task now: the one with the fewest that suffice. A worker that
-- drains comes last, and only for a task before the one for which it drains. Its functions are created only where it is called.
local spare_drainers = false  -- whether to wake none that drains: claims that find nothing must not wake each other for ever
local function wake_short(p)
  local function is_open(lane)
    for _, g in ipairs(gates_of(lane)) do
      if gate_room(g) <= 0 then return false end
    end
    return true
  end

  -- Returns the score at which a claim of a worker that drains stops: that of the first task of its reserved lane. Returns
  -- math.huge when no claim stops there now.
  local function stops_at(lane, free)
    local q, _, _, _, _, weight = split_lane(lane)
    local id, score = first_of(lane_key(lane))
    if not id or weight <= free or queue_room(q) <= 0 or not is_open(lane) then return math.huge end
    return tonumber(score)
  end

  -- Returns the weight of a task that a worker with `free` slots can take from a list before `bound`, or the weight of a lane
  -- that it would reserve; nil when there is neither. Looks at 100 entries of a list.
  local function weight_in(key, q, g, free, bound)
    local entries = redis.call('ZRANGE', key, 0, 99, 'WITHSCORES')
    for i = 1, #entries, 2 do
      local entry, weight = entries[i], nil
      local who, group = split_entry(entry)
      if not who then
        if tonumber(entries[i + 1]) >= bound then return nil end
        weight = select(6, split_lane(entry))
        if (weight > free and reservations()[entry]) or not is_open(entry) then weight = nil end
      elseif group == '' then
        weight = weight_in(turn_key(p, q, g, who), q, g, free, bound)
      elseif gate_room(group) > 0 then
        weight = weight_in(list_key(p, q, group), q, group, free, bound)
      end
      if weight then return weight end
    end
    return nil
  end

  -- The same over all queues. In a fair queue, the lane for which a worker drains comes first in its band.
  local function next_weight(free, bound, reserved)
    for _, q in ipairs(redis.call('ZRANGE', heads_key(p), 0, 99)) do
      local is_own = bound < math.huge and queue_policy(q).fair and split_lane(reserved) == q
      local weight = queue_room(q) > 0
        and weight_in(queue_heads_key(p, q), q, '', free, is_own and bound - bound % 1e13 or bound)
      if weight then return weight end
    end
    return nil
  end

  local reserved, drainers, others, chosen = {}, {}, {}, nil
  for lane, worker in pairs(reservations()) do reserved[worker] = lane end
  local workers = redis.call('ZRANGE', short_key(p), 0, -1, 'WITHSCORES')  -- the one with the fewest slots first
  for i = 1, #workers, 2 do
    local worker, free = workers[i], tonumber(workers[i + 1])
    local bound = reserved[worker] and stops_at(reserved[worker], free) or math.huge
    local list = bound < math.huge and drainers or others
    list[#list + 1] = { worker, free, bound }
  end
  local weight = #others > 0 and next_weight(others[#others][2], math.huge)
  for i = #others, 1, -1 do
    if weight and (i == #others or others[i][2] >= weight) then chosen = others[i][1] end
  end
  for _, each in ipairs(not spare_drainers and drainers or {}) do
    if not chosen and next_weight(each[2], each[3], reserved[each[1]]) then chosen = each[1] end
  end
  if not chosen then return false end
  redis.call('ZREM', short_key(p), chosen)
  return wake_worker(chosen)
end
