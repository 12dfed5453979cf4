--! include heads
-- Leases that a claim exchanges for new ones: the transaction that grants the new tasks first ends those of these leases, and
-- grants nothing unless all of them were still held. So their slots count as free in this claim, and never more tasks run
-- than a cap allows. The old leases stay until the rows have ended; meanwhile no plain claim sees room.
--
-- Several workers may exchange at once. Then there are more leases than a cap allows, though no exchange makes more tasks run.
-- So young leases count as free too, but at most those beyond the cap: a worker then gets no more slots than it offers. After
-- an edit of limits or a repair of leases, more tasks than the cap may really run; for a second all leases count, so that the
-- tasks become fewer.
local offer_slots, withdraw_slots  -- the others are local to a block: Lua allows 200 in a script
do
  local UNDER_WAY = 50000  -- us; a younger lease may belong to an exchange

  -- Marks the queues and gates of the exchanged leases, so that `refresh_touched` shows or hides them as their room says.
  local function touch_exchanged(profile)
    for g in pairs(exchanged) do
      local q = string.match(g, '^q:(.*)$')
      if q then touch(profile, q, '') elseif g ~= 'a' then refresh_gate(g) end
    end
  end

  -- Counts the leases of `queues` that others exchange at this moment.
  local function count_under_way(queues)
    if now_us() - within(redis.call('HGET', GENERATION, 'edited'), now_us()) < STEP_US then return end
    local recent = {}
    for _, q in ipairs(queues) do
      local since = whole(now_us() - UNDER_WAY)
      local young = redis.call('ZREVRANGEBYSCORE', queue_leases_key(q), '+inf', since, 'LIMIT', 0, 500)
      for _, id in ipairs(young) do recent[#recent + 1] = id end
    end
    for g, offered in pairs(exchanged) do
      local q, n = string.match(g, '^q:(.*)$'), 0
      local cap = g == 'a' and global_policy()[1] or g ~= 'a' and (q and queue_policy(q) or gate_policy(g)).cap
      local used = cap and (g == 'a' and redis.call('HLEN', LEASES) or q and redis.call('ZCARD', queue_leases_key(q))
        or redis.call('SCARD', held_key(g)))
      if cap and used > tonumber(cap) and #recent > 0 then
        if g == 'a' or q then
          n = #recent
        else
          for _, is_member in ipairs(redis.call('SMISMEMBER', held_key(g), unpack(recent))) do n = n + is_member end
        end
        exchanged[g] = offered + math.min(n, used - tonumber(cap))
      end
    end
  end

  -- Counts leases: arguments id, stamp, id, stamp, ... from the given one on. A lease that was replaced has no slot to give.
  -- Returns the maximum number of tasks to propose, and whether that leaves slots to others. The maximum is the number of
  -- leases that end, because a worker has been woken for any other room. If other workers of the profile lack tasks, all work
  -- that waits is behind limits. Then a worker that holds more than its part of the slots of these queues leaves the rest to
  -- them, so that they work at the same time; the release of the exchanged leases wakes them. It keeps 16: fewer tasks at a
  -- time cost more each.
  function offer_slots(profile, worker, from)
    local queues, leased, waiting = {}, 0, redis.call('ZCARD', idle_key(profile))
    if redis.call('ZSCORE', idle_key(profile), worker) then waiting = waiting - 1 end
    for i = from, #ARGV, 2 do
      local address = redis.call('HGET', LEASES, ARGV[i])
      local q = address and split_lane(address)
      local stamp = q and redis.call('ZSCORE', queue_leases_key(q), ARGV[i])
      if stamp and tonumber(stamp) == tonumber(ARGV[i + 1]) then
        exchanged.a = (exchanged.a or 0) + 1
        if not exchanged['q:' .. q] then
          queues[#queues + 1], leased = q, leased + redis.call('ZCARD', queue_leases_key(q))
        end
        exchanged['q:' .. q] = (exchanged['q:' .. q] or 0) + 1
        for _, g in ipairs(gates_of(address)) do exchanged[g] = (exchanged[g] or 0) + 1 end
      end
    end
    local offered = exchanged.a or 0
    count_under_way(queues)
    touch_exchanged(profile)
    refresh_touched()
    local part = waiting > 0 and math.max(16, math.ceil(leased / (waiting + 1))) or offered
    return math.min(part, offered), part < offered
  end

  -- From here on the exchanged leases count as any other.
  function withdraw_slots(profile)
    touch_exchanged(profile)
    exchanged = {}
  end
end
