-- Deletes keys of earlier generations, unless a later rebuild has begun: what it wrote stays.
--
-- KEYS[1]  prefix (hash tag) of all keys
-- ARGV[1]  number of the generation that wipes    ARGV  then full keys, at most 1000; none: it begins
-- Returns  1, or 0 when the index is of another generation by now
--! include keys
if redis.call('HGET', GENERATION, 'number') ~= ARGV[1] then return 0 end
if #ARGV > 1 then redis.call('UNLINK', unpack(ARGV, 2)) else redis.call('HDEL', GENERATION, 'reshaped') end
return 1
