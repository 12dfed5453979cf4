-- Frees the slots of leases that have ended: their rows say so, or no row was ever granted under them.
--
-- ARGV     lane, n, id, leased_at_us, id, leased_at_us, ... (n pairs, at most 500), lane, n, ...
--          a lane, or only its queue
-- Returns  how many slots were freed
--
-- Frees a slot only if the stamp is that of the present lease: a late worker must not free the slot of another worker that
-- was granted the task meanwhile. Also removes the remains of an incomplete lease, which has no stamp.
-- A slot is a member of a set, so however often it is released, at most one is freed.
-- Where the queue, everything, or a gate has a limit, one waiting worker is woken for each freed slot.
--! include wake
local freed, at = 0, 1
while at < #ARGV do
  local lane, n = address_of(ARGV[at]), tonumber(ARGV[at + 1])
  local q, ids = split_lane(lane), {}
  for i = 1, n do ids[i] = ARGV[at + 2 * i] end
  local leased, ended = redis.call('ZMSCORE', queue_leases_key(q), unpack(ids)), {}
  for i = 1, n do
    if not leased[i] or tonumber(leased[i]) == tonumber(ARGV[at + 2 * i + 1]) then ended[#ended + 1] = ids[i] end
  end
  at = at + 2 + 2 * n
  if #ended > 0 then
    local opened = leave_gates(ended, lane)
    local removed = math.max(
      redis.call('HDEL', LEASES, unpack(ended)), redis.call('ZREM', queue_leases_key(q), unpack(ended)))
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
