--! include rooms
-- Counts leases (id, address, id, address, ...) at the gates that have limits, and deletes the counts of gates that have none.
local function count_leases(all)
  local gone = {}
  for i = 1, #all, 2 do
    local counts = {}
    for _, g in ipairs(gates_of(all[i + 1])) do
      redis.call('SADD', held_key(g), all[i])
      counts[g] = true
    end
    local q, task_type, _, user, task_key = split_lane(all[i + 1])
    for _, g in ipairs({ 't:' .. task_type, 'k:' .. task_key, 'u:' .. q .. '\30' .. user }) do
      if not counts[g] then gone[g] = true end
    end
  end
  for g in pairs(gone) do redis.call('DEL', held_key(g)) end
end

-- Begins or ceases to count the leases of a set of gates, in one step if there are few; returns what the caller must do
-- next: 'count' them before the limits take effect, 'forget' them, or ''.
local AT_ONCE_LEASES = 500
local function count_from_now(set, key, must_count, is_counting)
  local counts = redis.call('SISMEMBER', LIMITS, set) == 1
  if not must_count then redis.call('HDEL', key, 'counting') end
  if counts == must_count and not (must_count and is_counting) then return '' end
  redis.call(must_count and 'SADD' or 'SREM', LIMITS, set)
  if must_count then redis.call('HSET', SETTINGS, 'gated', '1') end
  if is_counting and must_count or redis.call('HLEN', LEASES) > AT_ONCE_LEASES then
    if must_count then redis.call('HSET', key, 'counting', '1') end
    return must_count and 'count' or 'forget'
  end
  forget_policies()
  count_leases(redis.call('HGETALL', LEASES))
  return ''
end
