-- How many tasks may still start. A slot is a lease that exists, so a limit compares a
-- cardinality; there is no counter that could drift.
local function room_under(cap, used)
  if not cap then return math.huge end
  return math.max(0, tonumber(cap) - used)
end
local function global_room()
  return room_under(redis.call('HGET', SETTINGS, 'max_concurrent'), redis.call('SCARD', LEASES))
end
local function queue_room(q)
  local policy = redis.call('HMGET', queue_key(q), 'paused', 'max_concurrent')
  if policy[1] == '1' then return 0 end
  if not policy[2] then return math.huge end
  return room_under(policy[2], redis.call('ZCARD', queue_leases_key(q)))
end
