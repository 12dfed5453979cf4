--! include places
-- The user or key that takes turns in a fair queue, for tasks of this lane.
local function turn_owner(fair, lane)
  local _, _, _, user, key = split_lane(lane)
  return fair == 'key' and key or user
end

-- Writes leases: id, address, id, address, ... Redis stores a small hash as a list, which it reads through at each look-up. One
-- value longer than a list may hold turns the hash into a table, and it stays one.
local function write_leases(leases)
  local is_new = redis.call('EXISTS', LEASES) == 0
  if is_new then redis.call('HSET', LEASES, '', string.rep(' ', 100)) end
  redis.call('HSET', LEASES, unpack(leases))
  if is_new then redis.call('HDEL', LEASES, '') end
end

-- Removes leases from the gates that they passed; returns the gates that were full and are not now. The caller frees the slot of
-- the queue. `given` is the address to use for an incomplete lease whose address the index has lost.
local function leave_gates(ids, given)
  if not has_gate_limits() then return {} end
  local gone, opened = {}, {}
  for i, address in ipairs(redis.call('HMGET', LEASES, unpack(ids))) do
    for _, g in ipairs(gates_of(address or given)) do
      gone[g] = gone[g] or {}
      table.insert(gone[g], ids[i])
    end
  end
  for g, members in pairs(gone) do
    local n, cap = redis.call('SREM', held_key(g), unpack(members)), tonumber(gate_policy(g).cap or nil)
    local left = cap and redis.call('SCARD', held_key(g)) or 0
    if n > 0 and cap and left < cap and left + n >= cap then opened[g] = true end
  end
  return opened
end
