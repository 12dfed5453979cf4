-- Frees the slots of tasks whose rows have left the executing state.
--
-- KEYS[1]  prefix of all keys (their hash tag)
-- ARGV     queue, n, id, leased_at_us, id, leased_at_us, ... (n pairs, at most 500), queue, n, ...
-- Returns  how many leases existed
--
-- Frees a slot only if it is still the lease that was taken at that instant ('' for any lease): a late worker must not
-- free the slot of the worker that was granted the task meanwhile. A lease that a rebuild restored (at 0) counts as the
-- one that the caller knows. A slot is a member of a set, so however often it is released, at most one is freed.
-- Where the queue, everything, or a gate has a limit, one waiting worker is woken for each freed slot.
--! include wake
local freed, at = 0, 1
while at < #ARGV do
  local q, n = ARGV[at], tonumber(ARGV[at + 1])
  local ids = {}
  for i = 1, n do ids[i] = ARGV[at + 2 * i] end
  local leased, matching = redis.call('ZMSCORE', queue_leases_key(q), unpack(ids)), {}
  for i = 1, n do
    local held, token = leased[i], ARGV[at + 2 * i + 1]
    if token == '' or (held and (tonumber(held) == tonumber(token) or tonumber(held) == 0)) then
      matching[#matching + 1] = ids[i]
    end
  end
  at = at + 2 + 2 * n
  if #matching > 0 then
    local opened = leave_gates(matching)
    redis.call('HDEL', LEASES, unpack(matching))
    local removed = redis.call('ZREM', queue_leases_key(q), unpack(matching))
    freed = freed + removed
    local cap = queue_policy(q).cap
    if cap then refresh_queue_everywhere(q) end
    for g in pairs(opened) do refresh_gate(g) end
    refresh_touched()
    if cap or global_policy()[1] or next(opened) then
      for _ = 1, removed do
        if not wake_any() then break end
      end
    end
  end
end
return freed
