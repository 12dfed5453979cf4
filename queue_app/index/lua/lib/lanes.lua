--! include limits
-- The lane in which a task waits. Callers always name the user; this function drops the user if the queue has no lanes
-- for each user.
local function lane_of(address)
  local q, task_type, capabilities, user, key, weight = split_lane(address)
  if user == '' or queue_policy(q).by_user then return address end
  local lane = q .. '\31' .. task_type .. '\31' .. capabilities
  if key == '' and weight == 1 then return lane end
  return lane .. '\31\31' .. key .. '\31' .. string.format('%d', weight)
end

-- The user or key that takes turns in a fair queue, for tasks of this lane.
local function turn_owner(fair, lane)
  local _, _, _, user, key = split_lane(lane)
  return fair == 'key' and key or user
end

-- Writes leases: id, lane, id, lane, ... Redis stores a small hash as a list, which it reads through at each look-up. One
-- value longer than a list may hold turns the hash into a table, and it stays one.
local function write_leases(leases)
  local is_new = redis.call('EXISTS', LEASES) == 0
  if is_new then redis.call('HSET', LEASES, '', string.rep(' ', 100)) end
  redis.call('HSET', LEASES, unpack(leases))
  if is_new then redis.call('HDEL', LEASES, '') end
end

-- Removes leases from the gates that they passed; returns the gates that were full. The caller frees the slot of the queue.
-- `given` is the lane to use for an incomplete lease whose lane the index has lost.
local function leave_gates(ids, given)
  if not has_gate_limits() then return {} end
  local gone, opened = {}, {}
  for i, lane in ipairs(redis.call('HMGET', LEASES, unpack(ids))) do
    for _, g in ipairs(gates_of(lane or given)) do
      gone[g] = gone[g] or {}
      table.insert(gone[g], ids[i])
    end
  end
  for g, members in pairs(gone) do
    local n, cap = redis.call('SREM', held_key(g), unpack(members)), tonumber(gate_policy(g).cap or nil)
    if n > 0 and cap and redis.call('SCARD', held_key(g)) + n >= cap then opened[g] = true end
  end
  return opened
end
