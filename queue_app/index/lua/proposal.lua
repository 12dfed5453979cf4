-- Lists what a worker was proposed last and still holds; whether it was granted, only the rows know.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV[1]  worker id
-- Returns  {leased_at_us, id, queue, id, queue, ...}; nothing when nothing is left of it
--! include keys
local stamp = redis.call('HGET', GENERATION, 'w:' .. ARGV[1])
if not stamp then return {} end
local reply = { stamp }
for _, q in ipairs(redis.call('SMEMBERS', QUEUES)) do
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', queue_leases_key(q), stamp, stamp)) do
    reply[#reply + 1] = id
    reply[#reply + 1] = q
  end
end
return reply
