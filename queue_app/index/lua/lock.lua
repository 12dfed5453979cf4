-- Takes, renews or releases a lock with expiry, as that of a rebuild.
--
-- ARGV[1]  name of the lock    ARGV[2]  token of the holder    ARGV[3]  ms until it expires; 0 releases it
-- Returns  1 when the token holds the lock, else 0
local key = KEYS[1] .. ':lock:' .. ARGV[1]
local holder = redis.pcall('GET', key)
if type(holder) == 'table' or redis.call('PTTL', key) == -1 then  -- no lock of ours: another type, or without expiry
  redis.call('DEL', key)
  holder = false
end
if holder and holder ~= ARGV[2] then
  -- A lock lasts too long when the server's clock steps back.
  if ARGV[3] ~= '0' and redis.call('PTTL', key) > tonumber(ARGV[3]) then redis.call('PEXPIRE', key, ARGV[3]) end
  return 0
end
if ARGV[3] == '0' then
  redis.call('DEL', key)
  return 0
end
redis.call('SET', key, ARGV[2], 'PX', ARGV[3])
return 1
