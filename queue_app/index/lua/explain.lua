-- Tells where a task stands, and which of the gates that its start would pass have no room.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV[1]  lane    ARGV[2]  id
-- Returns  {state of the generation, number of it, place in its lane or '', lane of its lease or '',
--          who takes turns in its queue: 'user', 'key' or '', how many of its own user or key are before it, gate, ...}
--          gate: {name, room or '' for no end, instant (us) that brings some or '', in use, cap or '', paused: '1',
--          throttled until (us) or '', starts that a full bucket holds or '', us between two starts or '', id, ...};
--          the ids are of tasks that hold the slots of a gate at its cap, at most 20
--
-- Writes nothing. The gates are those of a claim: everything, queue, then task type, key and user if limited.
--! include keys
--! include limits
local HOLDERS = 20
local lane, id = lane_of(ARGV[1]), ARGV[2]
local q = split_lane(lane)
local generation = redis.call('HMGET', GENERATION, 'number', 'run_id', 'state')
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
local state = generation[3] or 'missing'
if state == 'ready' and generation[2] ~= run_id then state = 'rebuilding' end
local reply = { state, generation[1] or '0', redis.call('ZSCORE', lane_key(lane), id) or '',
  redis.call('HGET', LEASES, id) or '', queue_policy(q).fair or '', 0 }
if reply[5] ~= '' and reply[3] ~= '' then
  reply[6] = redis.call('ZRANK', lane_key(lane), id)
  for _, other in ipairs(redis.call('SMEMBERS', lanes_key(q))) do
    if other ~= lane and turner(reply[5], other) == turner(reply[5], lane) then
      reply[6] = reply[6] + redis.call('ZCOUNT', lane_key(other), '-inf', '(' .. reply[3])
    end
  end
end

local function whole(number) return number and string.format('%.0f', number) or '' end
local function add(name, policy, room, at, used, holders)
  local gate = { name, room < math.huge and whole(room) or '', whole(at), used, policy.cap or '',
    policy.paused and '1' or '0', whole(policy.throttled), whole(policy.burst), whole(policy.interval or policy.delay) }
  if policy.cap and used >= tonumber(policy.cap) then
    for _, holder in ipairs(holders()) do gate[#gate + 1] = holder end
  end
  reply[#reply + 1] = gate
end

local everything = global_policy()
add('a', { cap = everything[1] or nil, paused = everything[2] == '1' }, global_room(), nil, redis.call('HLEN', LEASES),
  function() return redis.call('HRANDFIELD', LEASES, HOLDERS) end)
local room, at = queue_room(q)
add('q:' .. q, queue_policy(q), room, at, redis.call('ZCARD', queue_leases_key(q)),
  function() return redis.call('ZRANGE', queue_leases_key(q), 0, HOLDERS - 1) end)
for _, g in ipairs(gates_of(lane)) do
  room, at = gate_room(g)
  add(g, gate_policy(g), room, at, redis.call('SCARD', held_key(g)),
    function() return redis.call('SRANDMEMBER', held_key(g), HOLDERS) end)
end
return reply
