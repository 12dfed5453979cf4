-- Writes the leases of tasks that are executing according to their rows: the first step of a rebuild, and the repair of
-- a lease that is missing, incomplete or another.
--
-- ARGV     lane, n, id, leased_at_us, id, leased_at_us, ... (n pairs, at most 500), lane, n, ...
-- Returns  how many were not there
--
-- Stamps of later claims are larger, even when the clock went back since.
--! include wake
local restored, latest, at = 0, 0, 1
while at < #ARGV do
  local lane, n = address_of(ARGV[at]), tonumber(ARGV[at + 1])
  local q, leases, ids, changed = split_lane(lane), {}, {}, {}
  for i = 1, n do
    local id, stamp = ARGV[at + 2 * i], ARGV[at + 2 * i + 1]
    if redis.call('ZADD', queue_leases_key(q), 'CH', stamp, id) == 1 then changed[id] = true end
    if redis.call('HGET', LEASES, id) ~= lane then changed[id] = true end
    leases[2 * i - 1], leases[2 * i], ids[i] = id, lane, id
    latest = math.max(latest, tonumber(stamp))
  end
  if n > 0 then
    write_leases(leases)
    redis.call('SADD', QUEUES, q)  -- so that the reconciler compares its leases
    for _, g in ipairs(gates_of(lane)) do
      for _, id in ipairs(ids) do
        if redis.call('SADD', held_key(g), id) == 1 then changed[id] = true end
      end
      refresh_gate(g)
    end
    if queue_policy(q).cap then refresh_queue_everywhere(q) end
  end
  for _ in pairs(changed) do restored = restored + 1 end
  at = at + 2 + 2 * n
end
refresh_touched()
if latest > (tonumber(redis.call('HGET', GENERATION, 'stamp') or nil) or 0) then
  redis.call('HSET', GENERATION, 'stamp', whole(latest))
end
return restored
